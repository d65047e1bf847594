"""Servers for the tests of this folder: the binary under test on tiny random models."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from server import LENIENT, Server, tiny_model  # noqa: E402

# An attention model, and a hybrid whose recurrent state cannot be wound back.
VARIANTS = ["llama", "qwen35-r2"]


@pytest.fixture(scope="module", params=VARIANTS)
def server(request, binary, tmp_path_factory):
    log = tmp_path_factory.mktemp("server") / "server.log"
    with Server([binary, "serve"], tiny_model(request.param), LENIENT, log) as found:
        yield found
    assert found.process.returncode == 0, f"exit code {found.process.returncode}: {found.tail()}"
