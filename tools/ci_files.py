#!/usr/bin/env python3
"""Which files the checks look at. Usage: tools/ci_files.py cpp | headers | changed     (one name a line)"""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
COMMITS_RECENT = 5


def git(*arguments):
    """Lines that git prints; none where git or the history fails (a tarball, a shallow clone)."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        return []
    return done.stdout.splitlines() if done.returncode == 0 else []


def cpp_files():
    """All C++ files of ours, CUDA and C included, relative to the root."""
    return sorted(str(path.relative_to(ROOT)) for folder in ("include", "src", "tests", "bench") for path in
                  (ROOT / folder).rglob("*") if path.suffix in {".h", ".c", ".cpp", ".cu", ".cuh"})


def headers():
    """Headers that a CPU-only machine can compile alone."""
    return [name for name in cpp_files() if name.endswith(".h") and not name.startswith("src/cuda/")]


def recent_base():
    """The commit that changes are counted from: where this branch left origin/main, or on main itself the 5th last
    commit (or the oldest known one)."""
    head = git("rev-parse", "HEAD")
    for main in ("origin/main", "origin/master"):
        base = git("merge-base", main, "HEAD")
        if base and base != head:
            return base[0]
    history = git("rev-list", "--first-parent", f"--max-count={COMMITS_RECENT + 1}", "HEAD")
    return history[-1] if history else None


def changed():
    """Recently changed .cpp files, newest first: changed since recent_base(), in the working tree or by name of their
    header (x.h brings x.cpp). Without git: none."""
    base = recent_base()
    if base is None:
        return []
    names = git("ls-files", "--modified", "--others", "--exclude-standard")
    names += git("log", "--format=", "--name-only", f"{base}..HEAD") or git("ls-tree", "-r", "--name-only", "HEAD")
    result = []
    for name in names:
        name = str(Path(name).with_suffix(".cpp")) if name.endswith(".h") else name
        if name.startswith("src/") and name.endswith(".cpp") and name not in result and (ROOT / name).is_file():
            result.append(name)
    return result


if __name__ == "__main__":
    kinds = {"cpp": cpp_files, "headers": headers, "changed": changed}
    if len(sys.argv) != 2 or sys.argv[1] not in kinds:
        sys.exit(__doc__)
    print("".join(f"{name}\n" for name in kinds[sys.argv[1]]()), end="")
