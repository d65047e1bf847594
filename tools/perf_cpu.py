#!/usr/bin/env python3
"""Measures the CPU backend beside llama.cpp's own programs: same files, same threads, in turns; prints Markdown.

    tools/perf_cpu.py LLAMA_BIN MODEL.gguf … [--threads 1,2] [--rounds 3] [--text FILE] [--processor-time]

LLAMA_BIN: a folder with llama-bench, llama-completion and llama-perplexity, built from the llama-cpp-python sdist with
-DGGML_NATIVE=ON. Speeds are the best of the rounds, since whatever else the machine does takes from them; the range shows how
calm it was. With --processor-time, tokens by the seconds that a processor spent on them instead, on one thread: what other
programs take of a machine does not count, but for caches and memory that they share. With --text, the divergence of each from
float32 activations too, for models of the first argument on."""

import argparse
import json
import math
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINARY = ROOT / "build" / "release" / "sparkinfer"
PROMPT = "The capital of France is"
OURS = ("int16", "int8")


def output_of(command):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stderr[-2000:]}")
    return done


def speeds(command):
    """{"pp": tokens/s, "tg": tokens/s} of a bench that prints JSON lines, as both programs do."""
    rows = [json.loads(line) for line in output_of(command).stdout.splitlines() if line.startswith("{")]
    return {"pp" if row["n_prompt"] else "tg": max(row["samples_ts"]) for row in rows}


def bench(args, model, threads):
    """{who: {"pp": [tokens/s a round], "tg": […]}}"""
    size = ["-p", args.prompt, "-n", args.generate, "-r", 1, "-o", "jsonl", "-t", threads]
    commands = {"llama.cpp": [args.llama_bin / "llama-bench", "-m", model, *size]}
    for kind in OURS:
        commands[kind] = [BINARY, "bench", model, "--backend", "cpu", "--activations", kind, *size]
    found = {who: {"pp": [], "tg": []} for who in commands}
    for _ in range(args.rounds):
        for who, command in commands.items():
            for what, value in speeds(command).items():
                found[who][what].append(value)
    return found


def processor_seconds(command):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    output_of(command)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def processor_speed(program, size, tokens):
    """Tokens a second of processor time, by the difference between one repetition and as many as take two seconds more."""
    (speed,) = speeds([*program, *size, "-r", 1, "-o", "jsonl", "-t", 1]).values()
    more = max(2, math.ceil(2 * speed / tokens))
    one, many = (processor_seconds([*program, *size, "-r", count, "-t", 1]) for count in (1, 1 + more))
    return tokens * more / (many - one)


def report_processor_time(args, model):
    programs = {"llama.cpp": [args.llama_bin / "llama-bench", "-m", model]}
    for kind in OURS:
        programs[kind] = [BINARY, "bench", model, "--backend", "cpu", "--activations", kind]
    found = {who: {"pp": [], "tg": []} for who in programs}
    for _ in range(args.rounds):
        for who, program in programs.items():
            found[who]["pp"].append(processor_speed(program, ["-p", args.prompt, "-n", 0], args.prompt))
            found[who]["tg"].append(processor_speed(program, ["-p", 0, "-n", args.generate], args.generate))
    print_rows(model, 1, found)


def run_once(command):
    """Seconds and peak MiB of a program."""
    start = time.monotonic()
    with open(os.devnull, "w", encoding="utf-8") as nowhere:
        process = subprocess.Popen([*map(str, command)], stdin=subprocess.DEVNULL, stdout=nowhere, stderr=nowhere)
        _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))} ended with {process.returncode}")
    return time.monotonic() - start, usage.ru_maxrss / 1024


def first_token(args, model, threads):
    """{who: (seconds from start to the end of a run of one token, peak MiB)}, the best of the rounds."""
    theirs = [args.llama_bin / "llama-completion", "-m", model, "-p", PROMPT, "-n", 1, "-no-cnv", "--temp", 0, "-t", threads]
    ours = [BINARY, "run", model, "--backend", "cpu", "--raw", "-p", PROMPT, "-n", 1, "--temp", 0, "-t", threads]
    found = {"llama.cpp": [], "int16": []}
    for _ in range(args.rounds):
        found["llama.cpp"].append(run_once(theirs))
        found["int16"].append(run_once(ours))
    return {who: (min(s for s, _ in runs), min(m for _, m in runs)) for who, runs in found.items()}


def divergences(args, model):
    """{who: mean KL to float32 activations on the text}"""
    with tempfile.TemporaryDirectory() as folder:
        base = Path(folder) / "base"
        output_of([BINARY, "perplexity", model, "--backend", "cpu", "-f", args.text, "--activations", "f32", "--save-kl-base", base])
        said = {"llama.cpp": output_of([args.llama_bin / "llama-perplexity", "-m", model, "-f", args.text, "--kl-divergence",
                                        "--kl-divergence-base", base])}  # fmt: skip
        for kind in OURS:
            said[kind] = output_of([BINARY, "perplexity", model, "--backend", "cpu", "--kl-base", base, "--activations", kind])
    found = {}
    for who, done in said.items():
        match = re.search(r"Mean\s+KLD:\s*(-?[0-9.]+(?:e-?[0-9]+)?)", done.stdout + done.stderr)
        if not match:
            sys.exit(f"no mean KLD of {who} in\n{(done.stdout + done.stderr)[-2000:]}")
        found[who] = float(match.group(1))
    return found


def cell(values, best_of_peer=None):
    text = f"{max(values):,.0f} ({min(values):,.0f} …)"
    return text if best_of_peer is None else f"{text}, {max(values) / best_of_peer:.2f} ×"


def print_rows(model, threads, found):
    for who, rows in found.items():
        peer = None if who == "llama.cpp" else found["llama.cpp"]
        cells = [cell(rows[what], peer and max(peer[what])) for what in ("pp", "tg")]
        print(f"| {model.stem} | {threads} | {who} | {' | '.join(cells)} |", flush=True)


def report(args, model):
    if args.processor_time:
        return report_processor_time(args, model)
    for threads in args.threads:
        print_rows(model, threads, bench(args, model, threads))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llama_bin", type=Path)
    parser.add_argument("models", type=Path, nargs="+")
    parser.add_argument("--threads", type=lambda text: [int(n) for n in text.split(",")], default=[1, 2])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--prompt", type=int, default=512)
    parser.add_argument("--generate", type=int, default=64)
    parser.add_argument("--text", type=Path)
    parser.add_argument("--processor-time", action="store_true")
    args = parser.parse_args()
    print(f"load before {os.getloadavg()[0]:.1f}, {os.cpu_count()} cores, {args.rounds} rounds\n")
    print(f"| model | threads | who | prompt of {args.prompt}, tok/s | decode, tok/s |\n|---|---:|---|---|---|")
    for model in args.models:
        report(args, model)
    if args.processor_time:
        print(f"\nload after {os.getloadavg()[0]:.1f}")
        return
    print("\n| model | threads | who | start to first token, s | peak MiB |\n|---|---:|---|---:|---:|")
    for model in args.models:
        for threads in args.threads:
            for who, (seconds, peak) in first_token(args, model, threads).items():
                print(f"| {model.stem} | {threads} | {who} | {seconds:.2f} | {peak:.0f} |", flush=True)
    if args.text:
        print("\n| model | who | mean KL to float32 activations |\n|---|---|---:|")
        for model in args.models:
            for who, kl in divergences(args, model).items():
                print(f"| {model.stem} | {who} | {kl:.2e} |", flush=True)
    print(f"\nload after {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
