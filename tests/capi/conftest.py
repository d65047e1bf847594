"""What the tests of the C interface share."""

import pytest


@pytest.fixture(scope="session")
def models(make_tiny):
    """Two tiny random models: one of attention alone, one with recurrent layers."""
    return make_tiny("llama"), make_tiny("qwen35-r2")
