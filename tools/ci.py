#!/usr/bin/env python3
"""Builds and tests, part by part, with minutes for each and one total line at the end: `N passed, N failed`.

Usage: tools/ci.py test     model, release build, ctest, pytest                          (`make test`)
       tools/ci.py check    format, layering, headers, the above, sanitizers, clang-tidy (`make check`, .ci/run)

A test counts once for every way it is run. A part that is no test (a build, the format) counts as one failure when
it fails and as nothing when it passes. Later parts run all the same, so that one run shows everything that is wrong.
`tools/setup.sh` has run before. Standard library only.
"""

import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PYTHON = str(ROOT / ".venv" / "bin" / "python")
# Folders whose unit tests run under sanitizers too: the engine and everything it stands on. text is Rust behind a C
# border, cli and server are heavy to compile and run in the end-to-end tests.
SANITIZED = ["core", "quant", "load", "ops", "cpu", "model", "engine"]
SANITIZER_OPTIONS = {"ASAN_OPTIONS": "strict_string_checks=1:detect_stack_use_after_return=1",
                     "UBSAN_OPTIONS": "print_stacktrace=1"}


class Totals:
    """Counts of one run and the minutes of its parts."""

    def __init__(self):
        self.passed = self.failed = 0
        self.table = []

    def part(self, name, function):
        """Runs one part. `function` returns (passed, failed, skipped); returns True if nothing failed."""
        print(f"\n=== {name}", flush=True)
        start = time.monotonic()
        passed, failed, skipped = function()
        minutes = (time.monotonic() - start) / 60
        self.passed += passed
        self.failed += failed
        counts = f"{passed} passed, {failed} failed, {skipped} skipped" if passed or skipped else ""
        self.table.append(f"{'FAILED' if failed else 'ok':<7} {name:<12} {minutes:5.1f} min  {counts}".rstrip())
        return failed == 0

    def skip(self, name, why):
        self.table.append(f"{'FAILED':<7} {name:<12} not run: {why}")
        self.failed += 1

    def close(self):
        """Prints the table and the total line; returns the exit code."""
        print("\n" + "\n".join(self.table), flush=True)
        print(f"{self.passed} passed, {self.failed} failed", flush=True)
        return 1 if self.failed else 0


def run(*command, **environment):
    """Runs a command in the root with no input; returns its exit code."""
    print("+ " + " ".join(str(part) for part in command), flush=True)
    try:
        return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, env={**os.environ, **environment},
                              check=False).returncode
    except FileNotFoundError as error:
        print(f"{error.filename} is not installed: run `make setup`", flush=True)
        return 127


def step(*command):
    """A part that passes or fails as a whole."""
    return lambda: (0, int(run(*command) != 0), 0)


def steps(*commands):
    """A part of several commands, ended by the first that fails."""
    return lambda: (0, int(any(run(*command) != 0 for command in commands)), 0)


def count_junit(path, exit_code):
    """(passed, failed, skipped) of a JUnit file of ctest or pytest. A run that left no file, or that failed without
    naming a test (a crash, nothing collected), is one failure."""
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return 0, 1, 0
    passed = failed = skipped = 0
    for case in cases:
        # ctest: status run | fail | notrun | disabled; a skipped test is notrun with a <skipped> child that says so,
        # and so is one whose binary is missing, which must not pass for a skip.
        note = case.find("skipped")
        missing = note is not None and "not found" in note.get("message", "").lower()
        if case.find("failure") is not None or case.find("error") is not None or missing:
            failed += 1
        elif note is not None or case.get("status") == "disabled":
            skipped += 1
        else:
            passed += 1
    if failed == 0 and (exit_code != 0 or passed == 0):
        failed = 1
    return passed, failed, skipped


def ctest(preset, **environment):
    def part():
        report = ROOT / "build" / preset / "ctest.xml"
        report.unlink(missing_ok=True)
        code = run("ctest", "--test-dir", f"build/{preset}", "-j", str(os.cpu_count()), "--output-on-failure",
                   "--no-tests=error", "--quiet", "--output-log", f"build/{preset}/ctest.log", "--output-junit",
                   str(report), **environment)
        if code != 0:
            print((ROOT / "build" / preset / "ctest.log").read_text(errors="replace")[-20000:], flush=True)
        return count_junit(report, code)
    return part


def pytest():
    report = ROOT / "build" / "pytest.xml"
    report.unlink(missing_ok=True)
    code = run(PYTHON, "-m", "pytest", "tests", "tools", "-q", "-p", "no:cacheprovider", f"--junitxml={report}")
    return count_junit(report, code)


def clang_format():
    """Every C++ file as .clang-format has it; Rust too where the toolchain has rustfmt."""
    listed = subprocess.run([sys.executable, "tools/ci_files.py", "cpp"], cwd=ROOT, capture_output=True, text=True,
                            check=True).stdout.split()
    failed = run("clang-format-19", "--dry-run", "--Werror", *listed) != 0
    if shutil.which("rustfmt"):
        for manifest in sorted(ROOT.glob("rust/*/Cargo.toml")):
            failed |= run("cargo", "fmt", "--check", "--manifest-path", str(manifest)) != 0
    if failed:
        print("put right by: make fmt", flush=True)
    return 0, int(failed), 0


def build_and_test(totals):
    built = totals.part("build", steps(("cmake", "--preset", "release"), ("cmake", "--build", "--preset", "release")))
    fetched = totals.part("model", step(PYTHON, "tools/fetch_model.py"))
    if built and fetched:
        totals.part("ctest", ctest("release"))
        totals.part("pytest", pytest)
    else:
        totals.skip("tests", "the build or the model is missing")
    return built


def sanitizers(totals):
    folders = [f for f in SANITIZED if list((ROOT / "src" / f).glob("*_test.cpp"))]
    built = totals.part("asan build", steps(
        ("cmake", "--preset", "asan-ubsan"),
        ("cmake", "--build", "--preset", "asan-ubsan", "--target", *[f"{f}_test" for f in folders])))
    if built:
        totals.part("asan tests", ctest("asan-ubsan", **SANITIZER_OPTIONS))
    else:
        totals.skip("asan tests", "the build failed")


def main():
    if sys.argv[1:] not in (["test"], ["check"]):
        print(__doc__, file=sys.stderr)
        return 2
    check = sys.argv[1] == "check"
    totals = Totals()
    if check:
        totals.part("format", clang_format)
        totals.part("layering", step(sys.executable, "tools/check_layering.py"))
        totals.part("headers", step(sys.executable, "tools/ci_headers.py"))
    built = build_and_test(totals)
    if check:
        if built:
            sanitizers(totals)
        else:
            totals.skip("asan build", "the release build failed")
        totals.part("clang-tidy", step(sys.executable, "tools/ci_tidy.py"))
    return totals.close()


if __name__ == "__main__":
    sys.exit(main())
