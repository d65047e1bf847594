#!/usr/bin/env python3
"""Checks what no compiler checks: which folder includes which, and a few rules that keep the tree readable.

Prints `file:line: what is wrong` for every break and exits 1, or prints nothing and exits 0.
Usage: tools/check_layering.py [TREE]      tools/check_layering_test.py plants one break of every kind.
"""

import re
import subprocess
import sys
from pathlib import Path

# Folder of src/ -> folders it may include: the dependency rule of docs/ARCHITECTURE.md. None = everything.
MAY_INCLUDE = {
    "core": {"core"},
    "quant": {"quant", "core"},
    "load": {"load", "quant", "core"},
    "text": {"text", "core"},
    "ops": {"ops", "quant", "core"},
    "cpu": {"cpu", "ops", "quant", "core"},
    "cuda": {"cuda", "ops", "quant", "core"},
    "model": {"model", "ops", "load", "quant", "core"},
    "engine": {"engine", "model", "ops", "core"},
    "server": {"server", "engine", "text", "core"},
    "cli": None,
    "capi": {"capi", "cli", "cpu", "cuda", "engine", "text", "core"},
}
# A test (x_test.cpp, and test_x.h for several of them) of these folders runs what it tests on the CPU backend.
TEST_MAY_INCLUDE = {"model": {"cpu"}, "engine": {"cpu", "load", "quant"}}
# (folder, included folder) -> the only headers of it that may be used.
ONLY_HEADERS = {("server", "engine"): {"engine/engine.h"}, ("capi", "engine"): {"engine/engine.h"},
                ("capi", "cli"): {"cli/machine.h", "cli/model_facts.h"},
                ("engine", "ops"): {"ops/backend.h", "ops/tape.h", "ops/step.h", "ops/state_layout.h"}}
# Backends are named in one place of the command line, and in one of the C interface.
BACKENDS, NAMES_BACKEND = {"cpu", "cuda"}, {"cli": "src/cli/main.cpp", "capi": "src/capi/backend.cpp"}
# Headers of include/ are C and stand alone.
C_HEADER_INCLUDES = {"stddef.h", "stdint.h"}
JSON_FOLDERS = {"core", "load", "text", "server", "cli", "capi"}
# Headers that cost tens of seconds to compile: a few .cpp files wrap them for everybody else.
HEAVY = re.compile(r"^(CLI/|boost/beast|boost/asio|openssl/)")
HEAVY_FILES_MAX = 6
CUDA_HEADER = re.compile(r"^(cuda|cub/|cute/|cutlass/|thrust/|nv/|nccl|mma\.h$|cooperative_groups)")
GETENV = re.compile(r"\b(?:secure_getenv|getenv|setenv|putenv)\s*\(|\benv::(?:var|set_var)")
WORDS = [
    (re.compile(r"(?<![\w.])/(?:work|home|root|Users)/"), "a path of somebody's machine"),
    (re.compile(r"\.\./shared\b"), "a path outside of the project"),
    (re.compile(r"\b(?:TODO|FIXME|XXX)\b"), "an open end: finish it, or file it"),
]
FILE_LINES_MAX = 500
CODE = {".h", ".c", ".cpp", ".cuh", ".cu", ".rs", ".py", ".sh"}
INCLUDE = re.compile(r'^\s*#\s*include\s*(["<])([^">]+)[">]')
SELF = {"tools/check_layering.py", "tools/check_layering_test.py"}    # they spell the forbidden words


def project_files(tree):
    """All files of the project, relative: what git tracks or would track; every file where there is no git."""
    try:
        names = subprocess.run(["git", "-C", str(tree), "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
                               capture_output=True, check=True).stdout.decode().split("\0")
    except (FileNotFoundError, subprocess.CalledProcessError):
        names = [str(path.relative_to(tree)) for path in tree.rglob("*")]
    skipped = re.compile(r"^(build|\.venv|\.cache|models|\.git|rust/\w+/target)/|(^|/)__pycache__/")
    return sorted(n for n in set(names) if n and not skipped.search(n) and (tree / n).is_file())


def check_include(name, included, quoted):
    """Yields what is wrong with file `name` of src/ including `included`."""
    folder = Path(name).parts[1]
    test = re.search(r"(_test\.cpp|/test_\w+\.h)$", name) is not None
    if included == "sparkinfer.h" and folder != "capi":
        yield "the C interface is for other programs: only capi includes it"
    if CUDA_HEADER.match(included) and folder != "cuda" and not included.startswith("cuda/"):
        yield f"CUDA header {included} outside of src/cuda"
    if included.startswith("boost/json") and not name.startswith("src/core/json."):
        yield f"{included}: JSON goes through core/json.h"
    if included == "core/json.h" and folder not in JSON_FOLDERS:
        yield f"{folder} must not know of JSON"
    if HEAVY.match(included) and name.endswith(".h"):
        yield f"{included} in a header: it costs every includer tens of seconds; wrap it in a .cpp"
    target = included.split("/")[0]
    if "/" not in included and quoted:
        yield f'"{included}": write the folder too, "{folder}/{included}"'
    if "/" not in included or target not in MAY_INCLUDE:
        return
    allowed = MAY_INCLUDE.get(folder, set())
    if test and allowed is not None:
        allowed = allowed | TEST_MAY_INCLUDE.get(folder, set())
    if allowed is not None and target not in allowed:
        yield f"{folder} must not include {target} ({included})"
    elif included not in ONLY_HEADERS.get((folder, target), {included}):
        yield f"{folder} may include of {target} only {', '.join(sorted(ONLY_HEADERS[folder, target]))}"
    if folder in NAMES_BACKEND and target in BACKENDS and name != NAMES_BACKEND[folder]:
        yield f"only {NAMES_BACKEND[folder]} names a backend ({included})"


def check_source(name, lines):
    """Yields (line, what is wrong) for one C++ file of src/."""
    if Path(name).parts[1] not in MAY_INCLUDE:
        yield 1, f"src/{Path(name).parts[1]} has no row in the dependency rule"
        return
    if name.endswith((".h", ".cuh")) and "#pragma once" not in lines:
        yield 1, "a header without #pragma once"
    for number, line in enumerate(lines, 1):
        if match := INCLUDE.match(line):
            for wrong in check_include(name, match[2], match[1] == '"'):
                yield number, wrong


def check_text(name, lines):
    """Yields (line, what is wrong) for any text file."""
    code = Path(name).suffix in CODE
    if code and len(lines) > FILE_LINES_MAX:
        yield FILE_LINES_MAX + 1, f"{len(lines)} lines, at most {FILE_LINES_MAX} are allowed"
    for number, line in enumerate(lines, 1):
        if code and name.startswith(("src/", "rust/")) and not name.startswith("src/core/env.") and GETENV.search(line):
            yield number, "the environment is read in src/core/env.cpp alone"
        for pattern, wrong in WORDS:
            if name not in SELF and pattern.search(line):
                yield number, wrong


def check_tree(tree):
    """All breaks in the tree as `file:line: what is wrong`."""
    breaks, heavy = [], {}
    for name in project_files(tree):
        try:
            lines = (tree / name).read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:
            continue    # binary
        found = list(check_text(name, lines)) if not name.startswith("tests/golden/data") else []
        if name.startswith("src/") and name.count("/") >= 2 and Path(name).suffix in {".h", ".cpp", ".cuh", ".cu"}:
            found += check_source(name, lines)
            uses = [n for n, line in enumerate(lines, 1) if (m := INCLUDE.match(line)) and HEAVY.match(m[2])]
            if uses and name.endswith(".cpp"):
                heavy[name] = uses[0]
        if name.startswith("include/"):
            found += [(number, f"{match[2]}: headers of include/ stand alone")
                      for number, line in enumerate(lines, 1)
                      if (match := INCLUDE.match(line)) and match[2] not in C_HEADER_INCLUDES]
        breaks += [f"{name}:{number}: {wrong}" for number, wrong in found]
    if len(heavy) > HEAVY_FILES_MAX:
        breaks += [f"{n}:{i}: one of {len(heavy)} files with heavy headers (CLI11, Beast, Asio, OpenSSL), at "
                   f"most {HEAVY_FILES_MAX} may" for n, i in heavy.items()]
    return breaks


def main():
    tree = Path(sys.argv[1] if len(sys.argv) > 1 else Path(__file__).resolve().parent.parent)
    breaks = check_tree(tree)
    print("".join(f"{line}\n" for line in breaks), end="")
    return 1 if breaks else 0


if __name__ == "__main__":
    sys.exit(main())
