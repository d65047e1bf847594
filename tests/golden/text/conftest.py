import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import fetch    # noqa: E402
from probe import Probe    # noqa: E402


@pytest.fixture(scope="session")
def cache():
    """Third-party vocabularies and templates, fetched once."""
    return fetch.fetch()


@pytest.fixture(scope="session")
def vocabulary(cache, smollm2):
    """Path of a GGUF with the named vocabulary."""

    def path(name):
        if name == "smollm":
            return smollm2
        return cache / "ggml-vocab-llama-bpe.gguf" if name == "llama-bpe" else fetch.qwen_gguf(name)

    return path


@pytest.fixture(scope="session")
def probe(request):
    """Starts text_probe, which is built beside the binary under test, on a model."""
    binary = Path(request.config.getoption("--binary")).resolve().parent / "text_probe"
    if not binary.exists():
        pytest.fail(f"{binary} is missing; build it with `cmake --build --preset release`", pytrace=False)
    return lambda model: Probe(binary, model)
