"""What the tests of the C interface, the Python module and the packages share: the build, and two tiny models."""

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def build(binary):
    """The folder that the program under test was built in."""
    return binary.parent


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Two tiny random models: one of attention alone, one with recurrent layers."""
    paths = [tmp_path_factory.mktemp("models") / f"{variant}.gguf" for variant in ("llama", "qwen35-r2")]
    for path in paths:
        command = [sys.executable, str(ROOT / "tools" / "make_tiny_model.py"), path.stem, "--gguf", str(path)]
        subprocess.run(command, check=True, capture_output=True)
    return paths
