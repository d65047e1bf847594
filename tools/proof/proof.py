#!/usr/bin/env python3
"""Proves the server with real clients, proxies, attacks and loads, and the packages in clean roots; writes what was seen to docs/proof.md.

    proof.py [--only PART]… [--list]

Everything runs on loopback. Each part is run in turn, whatever became of the one before; its row says ok or FAILED, the
versions, the figures and the day. Rows of parts that are not run now stay as they were seen last. Exit code 1 when
a part that was run failed.
"""

import argparse
import datetime
import json
import subprocess
import sys
import time
import traceback
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(HERE), *(str(ROOT / "tests" / name) for name in ("serve", "agents", "proxy"))]

from parts import PARTS  # noqa: E402

RESULTS = ROOT / "build" / "proof" / "results.json"
PAGE = ROOT / "docs" / "proof.md"
HEAD = """# Proof

What `make proof` has seen: real clients, proxies, attacks and loads against `sparkinfer serve`, all on loopback; packages in clean
roots. Agents and packages run in a network namespace without any other network. Where a task must succeed, the model says what a script
has, under the request's mask; everything else is the product's (tests/serve/scripted_backend.h). Each row is of the run of its day.

| what | with | result | seen | day | commit |
|---|---|---|---|---|---|
"""


def output_of(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


def run_part(part):
    """One row."""
    folder = ROOT / "build" / "proof" / "work" / part.name
    subprocess.run(["rm", "-rf", str(folder)], check=True)
    folder.mkdir(parents=True)
    start = time.monotonic()
    try:
        figures, ok = part.run(folder), True
    except Exception as error:  # noqa: BLE001  a part that fails in any way is a row that says so
        traceback.print_exc()
        figures, ok = {"reason": (str(error).splitlines() or [type(error).__name__])[0][:300]}, False
    try:
        version = part.version()
    except Exception as error:  # noqa: BLE001
        version = f"unknown: {error}"
    return {"what": part.what, "with": version, "ok": ok, "figures": figures,
            "seconds": round(time.monotonic() - start), "day": datetime.date.today().isoformat(),
            "commit": output_of("git", "rev-parse", "--short", "HEAD")}


def cell(text):
    return str(text).replace("|", "\\|").replace("\n", " ")


def rows_before():
    """The rows of the page as it is, by what they are about: also those of runs on another machine."""
    lines = PAGE.read_text().splitlines() if PAGE.exists() else []
    return {line.split(" | ")[0].removeprefix("| "): line for line in lines if line.startswith("| ")}


def page(results):
    rows, before = [], rows_before()
    for part in PARTS:
        row = results.get(part.name)
        if not row:
            rows.append(before.get(cell(part.what), f"| {cell(part.what)} | | not run | | | |"))
            continue
        seen = ", ".join(f"{key.replace('_', ' ')} {value}" for key, value in row["figures"].items())
        rows.append("| " + " | ".join(cell(text) for text in (
            row["what"], row["with"], "ok" if row["ok"] else "**FAILED**", f"{seen} ({row['seconds']} s)", row["day"],
            row["commit"])) + " |")
    machine = f"{output_of('nproc')} cores, " + next(
        (line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines()
         if line.startswith("model name")), "unknown processor")
    return HEAD + "\n".join(rows) + f"\n\nLast run on: {machine}.\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", action="append", choices=[p.name for p in PARTS], metavar="PART")
    parser.add_argument("--list", action="store_true", help="print the parts")
    args = parser.parse_args()
    if args.list:
        print("\n".join(f"{p.name:<16} {p.what}" for p in PARTS))
        return 0
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    failed = 0
    for part in PARTS:
        if args.only and part.name not in args.only:
            continue
        print(f"=== {part.name}: {part.what}", flush=True)
        results[part.name] = run_part(part)
        failed += not results[part.name]["ok"]
        print(f"{'ok' if results[part.name]['ok'] else 'FAILED'} {results[part.name]['figures']}", flush=True)
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps(results, indent=1))
        PAGE.write_text(page(results))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
