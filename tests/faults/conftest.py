"""The program with calls that fail on demand, and small models."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def faulty():
    path = ROOT / "build" / "release" / "faulty_sparkinfer"
    if not path.exists():
        pytest.fail(f"{path} is missing; build the tests", pytrace=False)
    return path


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """A tiny llama as one file and as a folder, and ids for it."""
    folder = tmp_path_factory.mktemp("models")
    for model in (["llama", "--gguf", "tiny.gguf"], ["qwen35moe-unfused", "--hf", "folder", "--shards", "2"]):
        subprocess.run([sys.executable, str(ROOT / "tools" / "make_tiny_model.py"), *model], check=True, capture_output=True,
                       cwd=folder)
    np.save(folder / "ids.npy", np.arange(9, 29, dtype=np.int32))
    np.save(folder / "many.npy", np.arange(9, 509, dtype=np.int32))
    (folder / "talk.txt").write_text("Hello\nAnd now?\n/save talk.json\n")
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 4)
    return folder
