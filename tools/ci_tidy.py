#!/usr/bin/env python3
"""clang-tidy, any finding is an error.

Usage: tools/ci_tidy.py          recently changed files (`make check`)
       tools/ci_tidy.py --all    every file (`make lint`)

Recently changed = tools/ci_files.py, changed(): since the branch left origin/main, or the last 5 commits, newest
first. A file costs 5 to 60 s, so no new one is started after 4 minutes; those left out are named and `make lint`
covers them. The flags come from the compile commands of build/asan-ubsan (clang) or else build/release.
"""

import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import ci_files

START_BEFORE_S = 4 * 60


def database():
    """(folder of compile_commands.json, files in it), or None before the first build."""
    for preset in ("asan-ubsan", "release"):
        folder = ci_files.ROOT / "build" / preset
        if (folder / "compile_commands.json").is_file():
            entries = json.loads((folder / "compile_commands.json").read_text())
            return folder, {os.path.relpath(e["file"], ci_files.ROOT) for e in entries}
    return None


def tidy(folder, name, deadline):
    """(name, output), output empty if all is well and None if there was no time left."""
    if time.monotonic() > deadline:
        return name, None
    done = subprocess.run(["clang-tidy-19", "--quiet", "-p", str(folder), "--extra-arg=-Wno-unknown-warning-option",
                           name], cwd=ci_files.ROOT, capture_output=True, text=True, check=False)
    return name, (done.stdout + done.stderr if done.returncode != 0 else "")


def main():
    everything = sys.argv[1:] == ["--all"]
    found = database()
    if found is None:
        print("clang-tidy needs compile commands: run `make build` first")
        return 1
    folder, known = found
    if not everything and ci_files.recent_base() is None:
        print("no git history here, so no file counts as recently changed: nothing checked, `make lint` checks all")
        return 0
    names = [n for n in (ci_files.cpp_files() if everything else ci_files.changed()) if n in known]
    deadline = time.monotonic() + (float("inf") if everything else START_BEFORE_S)
    results = []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for result in pool.map(lambda name: tidy(folder, name, deadline), names):
            results.append(result)
            print(result[1] or "", end="", flush=True)
    late = [name for name, output in results if output is None]
    wrong = [output for _, output in results if output]
    print(f"clang-tidy: {len(names) - len(late)} files, {len(wrong)} with findings")
    if late:
        print(f"left for `make lint`, out of time: {' '.join(late)}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
