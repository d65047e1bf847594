#!/usr/bin/env python3
"""Every header compiles alone, so that its order among other includes never matters. Exits 1 and shows the errors."""

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import ci_files

COMPILER = shutil.which("clang++-19") or "c++"
# Headers of tests may name the folders that CMake tells them.
FOLDERS = ['-DSPARKINFER_SOURCE_DIR=""', '-DSPARKINFER_BINARY_DIR=""']
FLAGS = ["-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Isrc", *FOLDERS, "-x", "c++", "-"]


def compile_alone(header):
    """Compiler output for a file that includes `header`, twice, and nothing else; empty if it is in order."""
    name = header.removeprefix("src/")
    source = f'#include "{name}"\n#include "{name}"\n'
    done = subprocess.run([COMPILER, *FLAGS, "-I."], input=source, cwd=ci_files.ROOT, capture_output=True, text=True,
                          check=False)
    return f"{header} does not compile alone:\n{done.stdout}{done.stderr}" if done.returncode != 0 else ""


def main():
    names = ci_files.headers()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        wrong = [text for text in pool.map(compile_alone, names) if text]
    print("\n".join(wrong) if wrong else f"{len(names)} headers compile alone")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
