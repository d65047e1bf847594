#!/usr/bin/env python3
"""Runs every test of the GPU on a machine that has one; a line for each part, exit 1 if anything failed.

    tools/test_gpu.py [--binary build/cuda/gpu_test] [--parts ops,models,sm120,recall,smollm2,sanitize] [--jobs 8] [--logs DIR]

  ops       op cases of every variant and format against float64, op by op and with graphs
  models    the tiny models of tests/golden against the CPU reference: logits, greedy tokens, every length to 4,097, bits
  sm120     ops, and models, with the kernels chosen by the multiprocessors and shared memory of an RTX 5090
  recall    a model with hand-set weights that finds what lies behind a token in up to 131,008 others
  smollm2   SmolLM2-135M over tests/data/text.txt against the CPU reference; needs models/ (make model)
  sanitize  compute-sanitizer's memcheck and racecheck over one case of every variant that `ops` has run
It needs the binary (cmake --build --preset cuda --target gpu_test), numpy, and for `sanitize` compute-sanitizer, which CUDA
toolkits hold. The tests share the machine: as many processes as --jobs, each with some of them.
"""

import argparse
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))
PARTS = ["ops", "models", "sm120", "recall", "smollm2", "sanitize"]
MODELS = "*WholeModel*:*EveryLength*:Lockstep.*"
CHECKED = (
    "FromTapes/*:Formats/*:LongRows.*:*Shapes.Random:NormLinear.*:Embed.*:OutputOp.*:Router.*:*/OutputSelect.*/V1003:"
    "*/AttentionDecodeTest.EveryLength/*:*/AttentionTest.CursorAndStoppedRows/*:"
    "*/GatedDeltaTest.LogOverLogInPlace/two_cyclic:*/GatedDeltaTest.Saves*/two_cyclic"
)
# racecheck follows an arrival on a barrier to that lane's reads only, not through the __syncwarp before it to those of the
# other lanes, so a ring that one lane frees for its warp looks raced. These cases alone are reported; with every lane
# arriving racecheck finds nothing in them.
UNFOLLOWED, UNFOLLOWED_VARIANTS = "LongRows.*", {"linear_add: slab, passes"}
CONTEXT = 8192  # of the tiny models, so that every length to 4,097 can be decoded


def patch_context(path):
    """Raises the stated context of a GGUF or a folder; no weight depends on it."""
    if path.is_dir():
        config = path / "config.json"
        text, count = re.subn(r'("max_position_embeddings": )\d+', rf"\g<1>{CONTEXT}", config.read_text())
        config.write_text(text)
    else:
        data = path.read_bytes()
        data, count = re.subn(rb"(\.context_length\x04\x00\x00\x00)....", lambda m: m[1] + CONTEXT.to_bytes(4, "little"), data,
                              count=1, flags=re.DOTALL)  # fmt: skip
        path.write_bytes(data)
    if count == 0:
        raise SystemExit(f"{path}: no context length was found to raise")


def make_models(folder):
    """All tiny variants as GGUF or, where a layout has none, as a folder; and the quantiser's files."""
    from tiny_gguf import write_tiny_gguf
    from tiny_model import VARIANTS, has_gguf, write_hf

    for name, variant in VARIANTS.items():
        path = folder / (f"{name}.gguf" if has_gguf(variant) else name)
        if has_gguf(variant):
            write_tiny_gguf(variant, path)
        else:
            write_hf(variant, path, 1)
        patch_context(path)
    for file in (ROOT / "tests" / "golden" / "quantised").glob("*.gguf"):
        shutil.copy(file, folder / f"quantised-{file.name}")


class Runner:
    def __init__(self, args):
        self.binary, self.logs, self.jobs = Path(args.binary).resolve(), args.logs, args.jobs
        self.failed, self.passed = [], 0
        self.logs.mkdir(parents=True, exist_ok=True)

    def run(self, part, arguments, limit, jobs=1, prefix=()):
        """The tests that `arguments` choose, in `jobs` processes; True, and their output, when all passed within `limit` s."""
        started, running = time.monotonic(), []
        for job in range(jobs):
            log = self.logs / f"{part}.{job}.log"
            shard = {"GTEST_TOTAL_SHARDS": str(jobs), "GTEST_SHARD_INDEX": str(job)}
            command = [*prefix, str(self.binary), "--gtest_brief=1", *arguments]
            with log.open("w") as to:
                running.append((log, subprocess.Popen(command, stdout=to, stderr=subprocess.STDOUT, start_new_session=True,
                                                      env={**os.environ, **shard})))  # fmt: skip
        texts, wrong, count = [], [], 0
        for log, process in running:
            try:
                code = process.wait(max(1, limit - (time.monotonic() - started)))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
                code = 0
                wrong.append(f"{log}: not done after {limit} s")
            text = log.read_text(errors="replace")
            texts.append(text)
            count += sum(map(int, re.findall(r"^\[  PASSED  \] (\d+) test", text, re.M)))
            skipped = re.findall(r"^\[  SKIPPED \] (\S+)", text, re.M)
            named = re.findall(r"^\[  FAILED  \] (\S+?),?(?: where.*)? \(\d+ ms\)", text, re.M)
            wrong += [f"{name} ({log})" for name in [*named, *dict.fromkeys(skipped)]]
            ended = re.search(r"^\[==========\] .* ran\.", text, re.M)
            if code and (not named or not ended):
                wrong.append(f"{log}: exit code {code}: {(text.strip().splitlines() or ['no output'])[-1]}")
        if count == 0 and not wrong:
            wrong.append(f"{part}: no test was run")
        self.passed += count
        self.failed += wrong
        seconds = time.monotonic() - started
        print(f"test-gpu: {part}: {count} passed, {len(wrong)} failed in {seconds:.0f} s", flush=True)
        for line in wrong:
            print(f"test-gpu:   {line}", flush=True)
        return not wrong, "\n".join(texts)

    def fail(self, text):
        self.failed.append(text)
        print(f"test-gpu: {text}", flush=True)


def variants(text):
    return set(re.findall(r"^variant (.*)$", text, re.M))


def sanitize(runner, known):
    tool = shutil.which("compute-sanitizer") or shutil.which("compute-sanitizer", path="/usr/local/cuda/bin")
    if not tool:
        return runner.fail("sanitize: there is no compute-sanitizer in PATH or /usr/local/cuda/bin")
    for check, summary in (("memcheck", "ERROR SUMMARY: 0 errors"), ("racecheck", "RACECHECK SUMMARY: 0 hazards")):
        prefix = [tool, "--tool", check, "--error-exitcode", "9"]
        chosen, expected = CHECKED, known
        if check == "racecheck":
            chosen, expected = f"{CHECKED}:-{UNFOLLOWED}", known - UNFOLLOWED_VARIANTS
        arguments = ["--short", "--variants", f"--gtest_filter={chosen}"]
        _, text = runner.run(check, arguments, 175, runner.jobs, prefix)
        clean = text.count(f"========= {summary}")
        if clean != runner.jobs:
            runner.fail(f"{check}: {clean} of {runner.jobs} processes were found clean")
        if missing := sorted(expected - variants(text)):
            runner.fail(f"{check}: variants that no case has run: {', '.join(missing)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--binary", default=str(ROOT / "build" / "cuda" / "gpu_test"))
    parser.add_argument("--parts", default=",".join(PARTS), help=f"of {', '.join(PARTS)}; default: all")
    parser.add_argument("--models", type=Path, default=ROOT / "models", help="the folder with SmolLM2")
    parser.add_argument("--jobs", type=int, default=max(1, min(8, (os.cpu_count() or 1) // 2)))
    parser.add_argument("--logs", type=Path, default=ROOT / "build" / "test-gpu")
    args = parser.parse_args()
    parts = args.parts.split(",")
    if unknown := set(parts) - set(PARTS):
        parser.error(f"no such part: {', '.join(sorted(unknown))}; expected {', '.join(PARTS)}")
    if not Path(args.binary).is_file():
        parser.error(f"{args.binary} is missing; build it with cmake --build --preset cuda --target gpu_test")
    runner = Runner(args)
    known = args.logs / "variants.txt"
    ops = f"--gtest_filter=-{MODELS}:Recall.*:SmolLM2.*"
    if "ops" in parts:
        _, text = runner.run("ops", ["--variants", ops], 240, args.jobs)
        known.write_text("\n".join(sorted(variants(text))))
        print(f"test-gpu: kernel variants: {', '.join(sorted(variants(text)))}", flush=True)
    if "sm120" in parts:
        runner.run("sm120-ops", ["--policy=rtx5090", ops], 240, args.jobs)
    if "models" in parts or "sm120" in parts:
        with tempfile.TemporaryDirectory() as folder:
            make_models(Path(folder))
            whole = [f"--models={folder}", f"--gtest_filter={MODELS}"]
            if "models" in parts:
                runner.run("models", whole, 300, args.jobs)
            if "sm120" in parts:
                runner.run("sm120-models", ["--policy=rtx5090", *whole], 300, args.jobs)
    if "recall" in parts:
        runner.run("recall", ["--gtest_filter=Recall.*"], 120)
    if "smollm2" in parts:
        if any(args.models.glob("SmolLM2*.gguf")):
            tokens = ROOT / "tests" / "golden" / "smollm2" / "text_tokens.npy"
            runner.run("smollm2", [f"--models={args.models}", f"--tokens={tokens}", "--gtest_filter=SmolLM2.*"], 120)
        else:
            runner.fail(f"smollm2: {args.models} holds no SmolLM2*.gguf; fetch it with `make model`")
    if "sanitize" in parts:
        if known.is_file():
            sanitize(runner, set(known.read_text().splitlines()))
        else:
            runner.fail(f"sanitize: {known} is missing; run the part ops first, which writes it")
    for log in sorted(args.logs.glob("*.log")):  # what the tests measured
        for line in re.findall(r"^    \S.*", log.read_text(errors="replace"), re.M):
            if log.name.startswith(("smollm2", "recall")):
                print(f"test-gpu: {log.stem}: {line.strip()}")
    print(f"test-gpu: {runner.passed} passed, {len(runner.failed)} failed; logs in {args.logs}")
    return 1 if runner.failed else 0


if __name__ == "__main__":
    sys.exit(main())
