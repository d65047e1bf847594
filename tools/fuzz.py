#!/usr/bin/env python3
"""Runs the fuzz targets of tests/fuzz, which `cmake --preset fuzz` builds: every kind of file that others write.

Usage: tools/fuzz.py (--hours N | --seconds N) [TARGET…]

--seconds N   each target runs that long (continuous integration: 20)
--hours N     so long in all by the clock, divided among the targets                       (`make fuzz HOURS=N`)

As many run at a time as there are cores. A target begins with its seeds, tests/fuzz/corpus/<target>, findings of before
among them, and with what earlier runs kept in build/fuzz/corpus. What it finds is written to build/fuzz/findings; the
exit code is 1 then. Standard library only.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build" / "fuzz"
SEEDS = ROOT / "tests" / "fuzz" / "corpus"
ONE_INPUT_S = 20      # an input that takes longer is a finding; sanitizers are slow, and so are busy machines
MEMORY_MB = 2048      # likewise one that takes more memory
ALLOCATION_MB = 512   # or that much at once
LONGEST_BYTES = 65536
END_S = 120           # after its time a target that has not ended is a finding too
LOG_CHARS = 8_000


def targets():
    return sorted(path.stem.removesuffix("_fuzz") for path in (ROOT / "tests" / "fuzz").glob("*_fuzz.cpp"))


def environment():
    symbolizer = f"external_symbolizer_path={shutil.which('llvm-symbolizer-19') or ''}"
    return {**os.environ, "ASAN_OPTIONS": f"detect_leaks=1:strict_string_checks=1:{symbolizer}",
            "UBSAN_OPTIONS": f"print_stacktrace=1:{symbolizer}"}


def figures(log):
    """What libFuzzer says of a run, in a few words."""
    runs = re.search(r"stat::number_of_executed_units: *(\d+)", log)
    covered = re.findall(r"cov: (\d+)", log)
    return f"{runs.group(1) if runs else '?'} inputs, {covered[-1] if covered else '?'} branches reached"


def run_target(name, seconds):
    """Runs one target; returns whether it found nothing, and what to print of it."""
    kept, findings = BUILD / "corpus" / name, BUILD / "findings"
    kept.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    command = [BUILD / f"{name}_fuzz", f"-max_total_time={seconds}", f"-timeout={ONE_INPUT_S}", f"-rss_limit_mb={MEMORY_MB}",
               f"-malloc_limit_mb={ALLOCATION_MB}", f"-max_len={LONGEST_BYTES}", "-print_final_stats=1",
               f"-artifact_prefix={findings}/{name}-", kept, SEEDS / name]
    try:
        done = subprocess.run(command, cwd=BUILD, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              check=False, env=environment(), errors="replace", text=True, timeout=seconds + END_S)
    except (subprocess.TimeoutExpired, OSError) as error:
        return False, f"{name}: {error}"
    if done.returncode == 0:
        return True, f"{name}: {seconds} s, {figures(done.stdout)}"
    return False, f"{name}: exit code {done.returncode}\n{done.stdout[-LOG_CHARS:]}"


def run_all(names, seconds, jobs):
    """(found nothing, found something) of the targets, each for so long."""
    passed = 0
    with ThreadPoolExecutor(jobs) as pool:
        for sound, text in pool.map(lambda name: run_target(name, seconds), names):
            print(text, flush=True)
            passed += sound
    return passed, len(names) - passed


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    time = parser.add_mutually_exclusive_group(required=True)
    time.add_argument("--seconds", type=int, metavar="N", help="for each target")
    time.add_argument("--hours", type=float, metavar="N", help="in all")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all of them")
    args = parser.parse_args()
    names = args.targets or targets()
    unknown = [name for name in names if name not in targets()]
    if unknown:
        parser.error(f"there is no target '{unknown[0]}', expected one of {', '.join(targets())}")
    jobs = min(os.cpu_count(), len(names))
    seconds = args.seconds or int(args.hours * 3600 * jobs / len(names))
    if seconds < 1:
        parser.error("no target would run for a second")
    return 1 if run_all(names, seconds, jobs)[1] else 0


if __name__ == "__main__":
    sys.exit(main())
