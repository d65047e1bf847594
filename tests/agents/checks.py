"""What must hold of a run of run_agent.py; each problem is one sentence."""

import json
import subprocess
import sys
from pathlib import Path

import agents
import task

HERE = Path(__file__).resolve().parent
SHAPES = HERE / "shapes"
CACHED = 0.95  # of the previous turn's prompt, at least
RUN_S = 900


def run(name, family="qwen35", keep=None):
    """Runs an agent in a process of its own; returns what it told."""
    command = [sys.executable, str(HERE / "run_agent.py"), name, "--family", family]
    done = subprocess.run([*command, *(["--keep", str(keep)] if keep else [])], capture_output=True, text=True,
                          timeout=RUN_S, check=False)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {done.returncode}\n{done.stderr[-3000:]}")
    return json.loads(done.stdout)


def problems(told):
    """Why the task was not done as it should be; empty when it was."""
    found = []
    expect = lambda holds, sentence: None if holds else found.append(sentence)  # noqa: E731
    expect(told["exit_code"] == 0, f"its exit code is {told['exit_code']}, expected 0")
    expect(told["file"] == task.RIGHT, f"the file is {told['file']!r}")
    expect(task.REPORT in told["output"], f"its output does not have the report: {told['output'][-500:]!r}")
    expect(len(told["turns"]) >= 4, f"it took {len(told['turns'])} turns, expected 4 and more")
    for i, turn in enumerate(told["turns"]):
        expect(turn["status"] == 200 and turn["complete"], f"turn {i + 1}: {turn}")
    for request in told["turns"] + told["others"]:
        expect(request["retries"] == 0, f"a retry: {request}")
    for other in told["others"]:
        expect(other["status"] < 400, f"a request failed: {other}")
    expect(told["server_code"] == 0, f"the server ended with {told['server_code']}")
    said = [event for event in told["script"] if event["event"] != "answer"]
    expect(not said, f"the script could not be said: {said[:3]}")
    if agents.AGENTS[told["agent"]].caches:
        found += misses(told["turns"])
    return found


def misses(turns):
    """Turns whose cached tokens are less than 95 % of the previous turn's prompt."""
    found = []
    for i in range(1, len(turns)):
        before, now = turns[i - 1]["usage"], turns[i]["usage"]
        if not before or not now:
            found.append(f"turn {i + 1}: no usage")
        elif now[1] < CACHED * before[0]:
            found.append(f"turn {i + 1}: {now[1]} tokens of {now[0]} were cached, the turn before had {before[0]}")
    return found


def cached_share(turns):
    """The least share of a previous turn's prompt that was cached."""
    pairs = [(a["usage"], b["usage"]) for a, b in zip(turns, turns[1:]) if a["usage"] and b["usage"]]
    return min((now[1] / before[0] for before, now in pairs), default=0)


def distinct_shapes(told):
    """The shapes of its requests, each once, in order."""
    shapes = []
    for shape in told["shapes"]:
        if shape not in shapes:
            shapes.append(shape)
    return shapes


def shape_problems(told):
    """How the requests differ from those that were kept."""
    path = SHAPES / f"{told['agent']}.json"
    if not path.exists():
        return [f"{path} is missing"]
    kept = json.loads(path.read_text())
    found = {"agent": told["agent"], "version": told["version"], "requests": distinct_shapes(told)}
    return [] if kept == found else [f"its requests are not those of {path.name}: {json.dumps(found)[:2000]}"]


def keep_shapes(told):
    SHAPES.mkdir(exist_ok=True)
    kept = {"agent": told["agent"], "version": told["version"], "requests": distinct_shapes(told)}
    (SHAPES / f"{told['agent']}.json").write_text(json.dumps(kept, indent=1) + "\n")
