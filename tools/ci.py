#!/usr/bin/env python3
"""Builds and tests, part by part, with minutes for each and one total line at the end: `N passed, N failed`.

Usage: tools/ci.py test     model, release build, ctest, pytest                          (`make test`)
       tools/ci.py check    format, layering, headers, the above, Codex, OpenCode, HAProxy, sanitizers, fuzz targets,
                            CUDA kernels, clang-tidy                                    (`make check`, .ci/run)

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
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import fuzz

ROOT = Path(__file__).resolve().parent.parent
PYTHON = str(ROOT / ".venv" / "bin" / "python")
# Folders whose unit tests run under sanitizers too, with the op cases of tests/ops: the engine and everything it stands
# on. text is Rust behind a C border, cli and server are heavy to compile and run in the end-to-end tests.
SANITIZED = ["core", "quant", "load", "ops", "cpu", "model", "engine"]
SANITIZED_TEST_S = 15 * 60
# Tests whose code has threads of its own, without text and server, under the thread sanitizer.
THREADED = ["engine_test", "ops_test", "cpu_test"]
FUZZ_S = 20           # each target
LOG_CHARS = 20_000    # of a failed run's output, its end
# Tests with programs of others (coding agents from npm, HAProxy), which `tools/setup.sh test` does not install.
CLIENTS = ["tests/agents", "tests/proxy"]


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


def run(*command, environment=None):
    """Runs a command in the root with no input, and with more variables if any; returns its exit code."""
    print("+ " + " ".join(str(part) for part in command), flush=True)
    try:
        return subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, check=False,
                              env={**os.environ, **(environment or {})}).returncode
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
    """(passed, failed, skipped) of a JUnit file of ctest, GoogleTest or pytest. A run that left no file, or that failed without
    naming a test (a crash, nothing collected), is one failure."""
    try:
        cases = list(ElementTree.parse(path).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return 0, 1, 0
    passed = failed = skipped = 0
    for case in cases:
        # ctest calls a test notrun both when it skipped itself (SKIP_…) and when its binary is missing.
        note = case.find("skipped")
        lost = case.get("status") == "notrun" and note is not None and not note.get("message", "").startswith("SKIP_")
        if case.find("failure") is not None or case.find("error") is not None or lost:
            failed += 1
        elif note is not None or case.get("status") in ("disabled", "notrun"):
            skipped += 1
        else:
            passed += 1
    if failed == 0 and (exit_code != 0 or passed == 0):
        failed = 1
    return passed, failed, skipped


def ctest():
    report, log = ROOT / "build/release/ctest.xml", ROOT / "build/release/ctest.log"
    report.unlink(missing_ok=True)
    code = run("ctest", "--test-dir", "build/release", "-j", str(os.cpu_count()), "--output-on-failure",
               "--no-tests=error", "--quiet", "--output-log", str(log), "--output-junit", str(report))
    if code != 0 and log.is_file():
        print(log.read_text(errors="replace")[-LOG_CHARS:], flush=True)
    return count_junit(report, code)


def pytest(name, *arguments):
    """A part that runs pytest; `name` is of its report."""
    def run_tests():
        report = ROOT / "build" / f"{name}.xml"
        report.unlink(missing_ok=True)
        code = run(PYTHON, "-m", "pytest", *arguments, "-q", "-p", "no:cacheprovider", f"--junitxml={report}")
        return count_junit(report, code)

    return run_tests


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
    built = totals.part("build", steps(("cmake", "--preset", "release"), ("cmake", "--build", "--preset", "release", "--", "-k", "0")))
    fetched = totals.part("model", step(PYTHON, "tools/fetch_model.py"))
    if built and fetched:
        totals.part("ctest", ctest)
        totals.part("pytest", pytest("pytest", "tests", "tools", *(f"--ignore={folder}" for folder in CLIENTS)))
    else:
        totals.skip("tests", "the build or the model is missing")
    return built


def sanitizer_options():
    """Environment of a sanitized test; Debian's symbolizer has its version in its name, so it must be pointed at."""
    symbolizer = f"external_symbolizer_path={shutil.which('llvm-symbolizer-19') or ''}"
    return {"ASAN_OPTIONS": f"detect_leaks=1:strict_string_checks=1:detect_stack_use_after_return=1:{symbolizer}",
            "TSAN_OPTIONS": f"halt_on_error=1:{symbolizer}",
            "UBSAN_OPTIONS": f"print_stacktrace=1:{symbolizer}"}


def sanitized_test(preset, name):
    """Runs one test binary of a sanitized build; returns its output and counts."""
    folder = ROOT / "build" / preset
    report = folder / f"{name}.xml"
    report.unlink(missing_ok=True)
    try:
        done = subprocess.run([folder / name, f"--gtest_output=xml:{report}", "--gtest_brief=1"], cwd=folder, text=True,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
                              timeout=SANITIZED_TEST_S, env={**os.environ, **sanitizer_options()}, errors="replace")
    except subprocess.TimeoutExpired:
        return f"{name}: no end after {SANITIZED_TEST_S} s", (0, 1, 0)
    counts = count_junit(report, done.returncode)
    return done.stdout[-LOG_CHARS:] if counts[1] else "", counts


def sanitized_capi():
    """The C program of tests/capi over two tiny models, with the address and leak sanitizers."""
    folder = ROOT / "build" / "asan-ubsan"
    models = [folder / f"{variant}.gguf" for variant in ("llama", "qwen35-r2")]
    for model in models:
        run(PYTHON, "tools/make_tiny_model.py", model.stem, "--gguf", model)
    failed = int(run(folder / "capi_test", *models, environment=sanitizer_options()) != 0)
    return 1 - failed, failed, 0


def sanitizer(totals, name, preset, tests, programs=()):
    """Builds and runs the tests of one sanitized build. `programs` are pairs of a target and the part that runs it."""
    def run_tests():
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            results = list(pool.map(lambda test: sanitized_test(preset, test), tests))
        for test, (output, counts) in zip(tests, results):
            print(f"{test}: {counts[0]} passed, {counts[1]} failed\n{output}", flush=True)
        return tuple(sum(counts[i] for _, counts in results) for i in range(3))

    if totals.part(f"{name} build", steps(("cmake", "--preset", preset),
                                          ("cmake", "--build", "--preset", preset, "--target", *tests,
                                           *(target for target, _ in programs)))):
        totals.part(f"{name} tests", run_tests)
        for target, part in programs:
            totals.part(f"{name} {target}", part)
    else:
        totals.skip(f"{name} tests", "the build failed")


def sanitizers(totals):
    unit_tests = [f"{f}_test" for f in SANITIZED if list((ROOT / "src" / f).glob("*_test.cpp"))]
    sanitizer(totals, "asan", "asan-ubsan", ["op_cases_test", *unit_tests], [("capi_test", sanitized_capi)])
    sanitizer(totals, "tsan", "tsan", THREADED)


def fuzz_targets():
    """Each target counts as one test."""
    passed, failed = fuzz.run_all(fuzz.targets(), FUZZ_S, os.cpu_count())
    return passed, failed, 0


def fuzzing(totals):
    if totals.part("fuzz build", steps(("cmake", "--preset", "fuzz"),
                                       ("cmake", "--build", "--preset", "fuzz", "--target", "fuzz_targets"))):
        totals.part("fuzz", fuzz_targets)
    else:
        totals.skip("fuzz", "the build failed")


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
            totals.part("clients", pytest("clients", *CLIENTS))
            sanitizers(totals)
            fuzzing(totals)
        else:
            totals.skip("clients, asan build", "the release build failed")
        totals.part("kernels", step(sys.executable, "tools/check_kernels.py"))
        totals.part("clang-tidy", step(sys.executable, "tools/ci_tidy.py"))
    return totals.close()


if __name__ == "__main__":
    sys.exit(main())
