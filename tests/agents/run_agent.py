#!/usr/bin/env python3
"""Runs one agent through the scripted task, with no network but loopback, and prints what happened as one JSON object.

    run_agent.py AGENT [--family qwen35|qwen3] [--keep FOLDER] [--upstream PORT]

It enters a network namespace of its own, starts scripted_serve, a recording proxy before it, and the agent with an
empty home. --upstream takes a server that runs already (in the same namespace: no isolation then). The exit code is 0
when the agent's process was run to its end, whatever it did; the object tells what.
"""

import argparse
import fcntl
import json
import os
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "serve")]

import agent_model  # noqa: E402
import agents  # noqa: E402
import task  # noqa: E402
import wire  # noqa: E402
from recorder import Recorder  # noqa: E402

AGENT_S = 600
INSIDE = "--inside"


def loopback_up():
    """ifconfig lo up."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as s:
        get, put, up = 0x8913, 0x8914, 1
        flags = struct.unpack("16sh14x", fcntl.ioctl(s, get, struct.pack("16sh14x", b"lo", 0)))[1]
        fcntl.ioctl(s, put, struct.pack("16sh14x", b"lo", flags | up))


def isolated(arguments):
    """Runs this program again in a network namespace; needs root or user namespaces."""
    ways = (["unshare", "--net"], ["unshare", "--net", "--map-root-user"])
    for way in ways:
        if subprocess.run([*way, "true"], capture_output=True, check=False).returncode == 0:
            return subprocess.run([*way, sys.executable, __file__, *arguments, INSIDE], check=False).returncode
    sys.exit("run_agent.py: no network namespace can be made here (unshare --net), so nothing keeps an agent on loopback")


def start_agent(name, folder, url):
    """(exit code or None when it was ended, seconds, output)."""
    agent = agents.AGENTS[name]
    home, work = folder / "home", folder / "work"
    (home / "tmp").mkdir(parents=True)
    work.mkdir()
    (work / task.FILE).write_text(task.WRONG)
    agent.home(home, url)
    start = time.monotonic()
    try:
        done = subprocess.run(agent.command(task.PROMPT, work), cwd=work, env=agents.environment_of(name, home, url),
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                              timeout=AGENT_S, check=False)
        code, output = done.returncode, done.stdout
    except subprocess.TimeoutExpired as late:
        code, output = None, late.stdout or b""
    return code, time.monotonic() - start, output.decode(errors="replace")


def turns_of(name, exchanges):
    """The requests of the task itself: of its path, and not a side job such as a title."""
    agent = agents.AGENTS[name]
    own = [e for e in exchanges if e.method == "POST" and e.path.split("?")[0] == agent.path]
    return [e for e in own if not agent.calls or e.json().get("tools")]


def told(name, folder, ran, exchanges, server):
    code, seconds, output = ran
    turns = turns_of(name, exchanges)
    return {
        "agent": name,
        "version": agents.AGENTS[name].version,
        "exit_code": code,
        "seconds": round(seconds, 1),
        "output": output[-4000:],
        "file": (folder / "work" / task.FILE).read_text(),
        "turns": [{"status": e.status, "usage": wire.usage(e) if e.status == 200 and e.complete else None,
                   "retries": wire.retries(e), "complete": e.complete,
                   "first_byte_s": round((e.first_byte or e.ended) - e.started, 2),
                   "seconds": round(e.ended - e.started, 2),
                   "error": e.answer.decode(errors="replace")[:500] if e.status != 200 else ""} for e in turns],
        "others": [{"request": f"{e.method} {e.path}", "status": e.status, "retries": wire.retries(e)}
                   for e in exchanges if e not in turns],
        "script": server.events() if server else [],
        "shapes": [wire.request_shape(e) for e in turns],
    }


def run(name, folder, family, upstream):
    import server as servers

    server = None
    if not upstream:
        server = servers.ScriptedServer(agents.script_of(name, folder / "work"), family, folder,
                                        ["--slots", "4", "--ctx", "65536", "--alias", agents.MODEL])
        server.start()
    try:
        with Recorder(upstream or server.port) as recorder:
            ran = start_agent(name, folder, f"http://127.0.0.1:{recorder.port}")
            exchanges = list(recorder.exchanges)
    finally:
        server_code = server.stop() if server else 0
    for i, e in enumerate(exchanges):
        (folder / f"{i:02}.request").write_bytes(e.body)
        (folder / f"{i:02}.answer").write_bytes(e.answer)
    return {**told(name, folder, ran, exchanges, server), "server_code": server_code}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("agent", choices=[*agents.AGENTS])
    parser.add_argument("--family", choices=["qwen35", "qwen3"], default="qwen35")
    parser.add_argument("--keep", help="the folder to work in, kept; else a temporary one")
    parser.add_argument("--upstream", type=int)
    parser.add_argument(INSIDE, action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if not args.inside and not args.upstream:
        agent_model.made(args.family)  # while there is a network to fetch its vocabulary from
        sys.exit(isolated(sys.argv[1:]))
    if args.inside:
        loopback_up()
    folder = Path(args.keep or tempfile.mkdtemp(prefix=f"sparkinfer-{args.agent}-"))
    try:
        if args.keep:
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        print(json.dumps(run(args.agent, folder, args.family, args.upstream)))
    finally:
        if not args.keep:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    os.umask(0o077)
    main()
