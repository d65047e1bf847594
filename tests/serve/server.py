"""Servers under test on loopback: started on a free port, waited for, ended by their own id."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = ROOT / "build" / "release"
# Every model's name is this one's, and a thousand requests may wait.
LENIENT = ["--slots", "4", "--any-model", "--queue", "2000"]
START_S = 120  # a busy machine reads a vocabulary of 248,320 slowly


def tiny_model(variant="llama"):
    """A tiny random model (vocabulary 512, context 1024) with a plain chat template; written on first use."""
    path = ROOT / ".cache" / "serve" / f"tiny-{variant}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        subprocess.run([sys.executable, str(ROOT / "tools" / "make_tiny_model.py"), variant, "--gguf", str(partial)],
                       check=True, capture_output=True)
        partial.rename(path)
    return path


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


class Server:
    """`sparkinfer serve MODEL` (or another command that takes the same options) as a process.

    with Server([binary, "serve"], model, ["--slots", "2"], log="server.log") as server: server.get("/health/live")
    """

    def __init__(self, command, model, options=(), log="server.log", port=None):
        self.port = port or free_port()
        self.log = Path(log)
        self.command = [*map(str, command), str(model), "--port", str(self.port), *map(str, options)]
        self.process = None

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

    def __enter__(self):
        self.start()
        return self

    def __exit__(self, *_):
        self.stop()

    def start(self):
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.log.open("ab"),
                                        stderr=subprocess.STDOUT)
        end = time.monotonic() + START_S
        while time.monotonic() < end:
            if self.process.poll() is not None:
                raise RuntimeError(f"{' '.join(self.command)}\nended with {self.process.returncode}\n{self.tail()}")
            try:
                if self.get("/health/ready")[0] == 200:
                    return
            except OSError:
                pass
            time.sleep(0.1)
        self.stop()
        raise RuntimeError(f"{' '.join(self.command)}\nis not ready after {START_S} s\n{self.tail()}")

    def stop(self, grace_s=60):
        """SIGTERM, and SIGKILL when that does not end it; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            try:
                self.process.wait(grace_s)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
        return self.process.returncode

    def tail(self):
        return self.log.read_text(errors="replace")[-3000:] if self.log.exists() else ""

    def request(self, method, path, body=None, headers=(), timeout=300):
        """(status, headers in lower case, body bytes)."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = json.dumps(body) if isinstance(body, (dict, list)) else body
            head = {"content-type": "application/json"} if data is not None else {}
            connection.request(method, path, data, {**head, **dict(headers)})
            answer = connection.getresponse()
            return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
        finally:
            connection.close()

    def get(self, path, **more):
        return self.request("GET", path, **more)

    def post(self, path, body, **more):
        return self.request("POST", path, body, **more)

    def post_json(self, path, body, **more):
        status, _, data = self.post(path, body, **more)
        if status != 200:
            raise RuntimeError(f"POST {path}: {status} {data[:500]}")
        return json.loads(data)

    def rss_kb(self):
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith("VmRSS:"):
                return int(line.split()[1])
        raise RuntimeError("no VmRSS")


class ScriptedServer(Server):
    """scripted_serve: the product's serve with a model that says what `script` has. `model` is a path, or a family of
    agent_model.py."""

    def __init__(self, script, model, folder, options=(), port=None):
        folder = Path(folder)
        if model in ("qwen35", "qwen3"):
            import agent_model

            model = agent_model.made(model)
        self.script, self.report = folder / "script.json", folder / "report.jsonl"
        self.script.write_text(json.dumps(script))
        super().__init__([BUILD / "scripted_serve", self.script, self.report], model, options,
                         folder / "server.log", port)

    def events(self):
        return [json.loads(line) for line in self.report.read_text().splitlines()]

    def failures(self):
        return [e for e in self.events() if e["event"] != "answer"]


def usable_cores():
    return len(os.sched_getaffinity(0))
