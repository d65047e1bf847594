"""The program with calls that fail on demand, and small models."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tools"))

from goldens_quantize import write_imatrix  # noqa: E402
from tiny_model import VARIANTS  # noqa: E402


@pytest.fixture(scope="session")
def faulty():
    path = ROOT / "build" / "release" / "faulty_sparkinfer"
    if not path.exists():
        pytest.fail(f"{path} is missing; build the tests", pytrace=False)
    return path


@pytest.fixture(scope="session")
def models(faulty, tmp_path_factory):
    """A tiny llama as one file, a folder of another model, and what goes with them: ids, texts, files of other commands."""
    folder = tmp_path_factory.mktemp("models")
    for model in (["llama", "--gguf", "tiny.gguf"], ["qwen35moe-unfused", "--hf", "folder", "--shards", "2"]):
        subprocess.run([sys.executable, str(ROOT / "tools" / "make_tiny_model.py"), *model], check=True, capture_output=True,
                       cwd=folder)
    np.save(folder / "ids.npy", np.arange(9, 29, dtype=np.int32))
    np.save(folder / "many.npy", np.arange(9, 509, dtype=np.int32))
    (folder / "talk.txt").write_text("Hello\nAnd now?\n/save talk.json\n")
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 4)
    (folder / "long.txt").write_text("The quick brown fox jumps over the lazy dog. " * 60)
    write_imatrix(VARIANTS["llama"], folder / "imatrix.dat")
    small = (folder / "ids.npy").read_bytes() * 700  # more than a small disk has room for
    (folder / "small.bin").write_bytes(small)
    files = [{"file": "small.bin", "bytes": len(small), "sha256": hashlib.sha256(small).hexdigest()}]
    (folder / "manifest.json").write_text(json.dumps({"models": [{"name": "small", "files": files}]}))
    base = [faulty, "perplexity", "tiny.gguf", "-f", "text.txt", "--ctx", "16", "--save-kl-base", "base.kld"]
    subprocess.run([*map(str, base)], check=True, capture_output=True, cwd=folder)
    return folder
