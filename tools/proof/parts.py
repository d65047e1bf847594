"""The parts of the proof. Each returns figures, and fails by an exception whose first line says why."""

import asyncio
import json
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import battery
import behind
import checks
import conformance
import evaluation
import differential
import installs
import soak
from server import BUILD, LENIENT, ROOT, Server, tiny_model

BINARY = BUILD / "sparkinfer"
SCHEDULES = 100_000
ROUNDS = 5  # of throughput
AGENT_NAMES = {"codex": "Codex", "claude": "Claude Code", "opencode": "OpenCode", "qwen": "Qwen Code", "aider": "aider"}


@dataclass
class Part:
    name: str
    what: str
    version: Callable
    run: Callable  # folder -> figures


def output_of(*command):
    done = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.stdout.strip()


def checked(*command, timeout=3600):
    """The output of a command that must succeed."""
    done = subprocess.run([*map(str, command)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                          timeout=timeout, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


def agent_part(name):
    def run(folder):
        checked(ROOT / "tools" / "proof" / "install_agents.sh", name)
        told = checks.run(name, keep=folder / "run")
        wrong = checks.problems(told) + checks.shape_problems(told)
        if wrong:
            raise RuntimeError(f"{len(wrong)} problems: {wrong[0]}\n" + "\n".join(wrong))
        figures = {"turns": len(told["turns"]), "retries": 0,
                   "largest_prompt": max(event["prompt_tokens"] for event in told["script"])}
        if checks.agents.AGENTS[name].caches:
            figures["least_share_cached"] = f"{100 * checks.cached_share(told['turns']):.1f} %"
        return figures

    version = checks.agents.AGENTS[name].version
    return Part(name, f"{AGENT_NAMES[name]} reads, edits, runs and reports", lambda: f"{AGENT_NAMES[name]} {version}", run)


def on_both(check, *arguments):
    """Runs a check on the attention model and on the hybrid; figures of the second are marked."""
    def run(folder):
        figures = {}
        for variant in ("llama", "qwen35-r2"):
            with Server([BINARY, "serve"], tiny_model(variant), LENIENT, folder / f"{variant}.log") as server:
                found = asyncio.run(check(server.port, *arguments))
            if server.process.returncode != 0:
                raise RuntimeError(f"the server ended with {server.process.returncode}\n{server.tail()}")
            figures |= found if not figures else {f"hybrid {key}": value for key, value in found.items()}
        return figures

    return run


def sparkinfer_version():
    return output_of(BINARY, "--version").splitlines()[0]


def attack_part(check):
    return Part(check.__name__, check.__doc__.split("\n")[0].rstrip("."), sparkinfer_version, on_both(check, 1))


def oracle_part(check):
    return Part(check.__name__, check.__doc__.split("\n")[0].rstrip("."), sparkinfer_version, on_both(check))


def run_soak(folder):
    with Server([BINARY, "serve"], tiny_model("qwen35-r2"), [*LENIENT, *soak.BOUNDED], folder / "server.log") as server:
        return asyncio.run(soak.soak(server, 5000))


def proxy_part(proxy, version):
    def run(folder):
        with behind.Site(proxy, folder) as site:
            figures = asyncio.run(behind.unbuffered(site))
            return {**figures, **asyncio.run(behind.drained(site, clients=8, rounds=4))}

    return Part(proxy.name, f"two replicas behind {proxy.name}: streams pass at once, a drain loses nothing", version, run)


def gtests(binary, pattern, *arguments):
    """Runs test cases of a C++ binary; how many passed."""
    text = checked(BUILD / binary, f"--gtest_filter={pattern}", *arguments)
    passed = int(re.search(r"\[  PASSED  \] (\d+) test", text).group(1))
    if passed == 0:
        raise RuntimeError(f"{binary} has no test {pattern}")
    return {"cases": passed}


def run_schedules(folder):
    found = gtests("engine_test", "CacheSchedules.*", f"--schedules={SCHEDULES}")
    return {"schedules": f"{SCHEDULES:,}", **found}


def bench(*arguments):
    """The rows of `sparkinfer bench …`."""
    return [json.loads(line) for line in checked(BINARY, "bench", *arguments, "-o", "jsonl").splitlines()
            if line.startswith("{")]


def throughput_round(url):
    """One of each measure, close in time to one another."""
    offline = bench(evaluation.MODEL, "-p", "512", "-n", "128", "-r", "2")
    one, eight = (bench("serve", url, "-c", clients, "-p", "16", "-n", "128", "-r", 4 * clients)[0] for clients in (1, 8))
    for row in (one, eight):
        if row["failed"]:
            raise RuntimeError(f"requests failed: {row['errors']}")
    speed = lambda tests: next(max(r["samples_ts"]) for r in offline if (r["n_prompt"], r["n_gen"]) == tests)  # noqa: E731
    return {"prefill": speed((512, 0)), "decode": speed((0, 128)), "one": one, "eight": eight}


def run_throughput(folder):
    """Eight clients at once against one and against the prefill; one client against `bench` without a server. Of several
    rounds the best of each: whatever else the machine does takes from a measure and never adds to it."""
    with Server([BINARY, "serve"], evaluation.MODEL, ["--slots", "8", "--ctx", "2048"], folder / "server.log") as server:
        rounds = [throughput_round(server.url) for _ in range(ROUNDS)]
    prefill, decode = (max(r[name] for r in rounds) for name in ("prefill", "decode"))
    one, eight = (max((r[name] for r in rounds), key=lambda row: row["tokens_per_s"]) for name in ("one", "eight"))
    least, alone = 0.8 * min(8 * one["tokens_per_s"], prefill), max(1000 / r["one"]["itl_ms"]["p50"] for r in rounds)
    figures = {"rounds": ROUNDS, "prefill_tok/s": round(prefill, 1), "one_client_tok/s": round(one["tokens_per_s"], 1),
               "eight_clients_tok/s": round(eight["tokens_per_s"], 1), "asked_for": round(least, 1),
               "overhead_at_one_client": f"{100 * (decode / alone - 1):.1f} %",
               "ttft_p50/p99_ms_of_eight": f"{eight['ttft_ms']['p50']:.0f}/{eight['ttft_ms']['p99']:.0f}",
               "itl_p50/p99_ms_of_eight": f"{eight['itl_ms']['p50']:.0f}/{eight['itl_ms']['p99']:.0f}"}
    if eight["tokens_per_s"] < least:
        raise RuntimeError(f"eight clients get too little: {figures}")
    if decode / alone > 1.05:
        raise RuntimeError(f"the server costs too much: {figures}")
    return figures


def run_sdks(folder):
    text = checked(sys.executable, "-m", "pytest", "tests/clients", "-q", "-p", "no:cacheprovider")
    passed = re.search(r"(\d+) passed", text)
    if not passed:
        raise RuntimeError(f"no SDK test was run\n{text[-2000:]}")
    return {"cases": int(passed.group(1))}


def sdk_versions():
    found = output_of(sys.executable, "-m", "pip", "list", "--format=freeze").splitlines()
    return ", ".join(line.replace("==", " ") for line in found if line.split("==")[0] in ("openai", "anthropic"))


PARTS = [
    Part("sdks", "the official Python SDKs: chat, streams, tools, structured output, errors", sdk_versions, run_sdks),
    *(agent_part(name) for name in AGENT_NAMES),
    *(attack_part(check) for check in battery.BATTERY),
    *(oracle_part(check) for check in differential.ORACLES),
    Part("soak", "5,000 mixed requests after a warm-up, memory grows by 1 % at most", sparkinfer_version, run_soak),
    Part("killed_save", "kill -9 in the middle of saving loses no file that was there", sparkinfer_version,
         lambda folder: gtests("serve_cases_test", "SavedCache.*")),
    Part("schedules", "random schedules of the engine over a device of hashes", sparkinfer_version, run_schedules),
    Part("throughput", "SmolLM2 on this CPU: eight clients at once, and one against bench", sparkinfer_version,
         run_throughput),
    proxy_part(behind.Haproxy(), lambda: " ".join(output_of(behind.program("haproxy"), "-v").split()[:3])),
    proxy_part(behind.Nginx(), lambda: output_of(behind.program("nginx"), "-v").replace("nginx version: ", "")),
    Part("schemathesis", "requests made from /openapi.json, answers held against it", conformance.version, conformance.run),
    Part("lm_eval", "lm-evaluation-harness, local-completions, a small task of its own", evaluation.version, evaluation.run),
    *(Part(run.__name__, f"in a clean Debian 12 without network, {run.__doc__.rstrip('.')}", installs.version, run)
      for run in (installs.deb, installs.tarball, installs.wheel)),
]
