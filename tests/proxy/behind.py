"""Two replicas behind a proxy that is configured as deploy/ has it, with other ports, and what must hold there."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import client
from server import ROOT, ScriptedServer, free_port, tiny_model

WORDS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen"
STEP_MS = 40
SCRIPT = {"step_ms": STEP_MS, "rules": [{"say": WORDS}]}


def body(session=0):
    return {"model": "x", "messages": [{"role": "user", "content": f"Count. {session}"}], "stream": True}


class Haproxy:
    name = "haproxy"

    def command(self, folder, ports):
        config = (ROOT / "deploy" / "haproxy" / "haproxy.cfg").read_text()
        (folder / "haproxy.cfg").write_text(with_ports(config, ports))
        return [program("haproxy"), "-db", "-f", str(folder / "haproxy.cfg")]


class Nginx:
    name = "nginx"

    def command(self, folder, ports):
        config = (ROOT / "deploy" / "nginx" / "sparkinfer.conf").read_text()
        (folder / "site.conf").write_text(with_ports(config, ports))
        for place in ("body", "proxy", "fastcgi", "uwsgi", "scgi"):
            (folder / place).mkdir(exist_ok=True)
        (folder / "nginx.conf").write_text(f"""
daemon off;
pid {folder}/nginx.pid;
error_log stderr warn;
events {{ worker_connections 4096; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/site.conf;
}}
""")
        return [program("nginx"), "-p", str(folder), "-c", str(folder / "nginx.conf")]


def program(name):
    found = shutil.which(name, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if not found:
        raise RuntimeError(f"{name} is not installed: apt-get install {name}")
    return found


def with_ports(config, ports):
    for old, new in zip((8080, 8081, 8082), ports):
        assert f"127.0.0.1:{old}" in config, f"the configuration has no 127.0.0.1:{old}"
        config = config.replace(f"127.0.0.1:{old}", f"127.0.0.1:{new}")
    return config


class Site:
    """The proxy and its two replicas."""

    def __init__(self, proxy, folder):
        self.folder = Path(folder)
        self.port, *ports = (free_port() for _ in range(3))
        self.replicas = []
        for name, port in zip("ab", ports):
            (self.folder / name).mkdir()
            self.replicas.append(ScriptedServer(SCRIPT, tiny_model(), self.folder / name,
                                                ["--slots", "4", "--threads", "1", "--any-model"], port))
        self.command = proxy.command(self.folder, (self.port, *ports))
        self.process = None

    def __enter__(self):
        try:
            for replica in self.replicas:
                replica.start()
            self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL,
                                            stdout=(self.folder / "proxy.log").open("wb"), stderr=subprocess.STDOUT)
            asyncio.run(self.wait())
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        if self.process:
            self.process.terminate()
            self.process.wait(30)
        for replica in self.replicas:
            if replica.process:
                replica.stop()

    async def wait(self):
        end = time.monotonic() + 30
        while True:
            try:
                if (await client.request(self.port, "GET", "/health/ready", timeout=5)).status == 200:
                    return
            except (OSError, asyncio.IncompleteReadError):
                pass
            assert time.monotonic() < end, (self.folder / "proxy.log").read_text()[-2000:]
            await asyncio.sleep(0.1)


def text_of(events):
    parts = [json.loads(payload) for _, payload in events if payload != "[DONE]"]
    return "".join(c["delta"].get("content") or "" for p in parts for c in p["choices"])


async def one(port, session):
    """Asks for one stream; it must be whole."""
    answer, events = await client.stream(port, "/v1/chat/completions", body(session), {"x-session-id": f"s{session}"})
    assert answer.status == 200, f"{answer.status} {answer.body[:300]!r}"
    assert events and events[-1][1] == "[DONE]", f"a stream that ends in the middle: {answer.body[-300:]!r}"
    assert text_of(events) == WORDS, text_of(events)
    return [seconds for seconds, _ in events]


async def unbuffered(site):
    """Events arrive as the model speaks: spread over its time, not together at the end."""
    times = await one(site.port, 0)
    total = times[-1] - times[0]
    expected = STEP_MS / 1000 * 10  # of some 16 words at least
    assert total >= expected, f"all events within {total:.2f} s, the model takes {expected:.2f} s and more"
    middle = [t for t in times if times[0] + 0.2 * total < t < times[0] + 0.8 * total]
    assert len(middle) >= 4, f"{len(middle)} of {len(times)} events came in the middle of the stream: {times}"
    return {"events": len(times), "seconds": round(total, 2)}


async def drained(site, clients, rounds):
    """While one replica after the other is drained and started again, every request gets its whole answer."""
    answers, stop = 0, False

    async def keep_asking(number):
        nonlocal answers
        while not stop:
            await one(site.port, number)
            answers += 1

    asking = [asyncio.create_task(keep_asking(i)) for i in range(clients)]
    codes = []
    try:
        for turn in range(rounds):
            replica = site.replicas[turn % 2]
            await asyncio.sleep(1.0)
            replica.process.send_signal(signal.SIGTERM)
            codes.append(await asyncio.to_thread(replica.process.wait, 60))
            await asyncio.sleep(0.5)
            await asyncio.to_thread(replica.start)
            await asyncio.sleep(1.5)
            done = [t for t in asking if t.done()]
            if done:
                break
        stop = True
        await asyncio.wait_for(asyncio.gather(*asking), 60)
    finally:
        for task in asking:
            task.cancel()
    assert codes == [0] * rounds, f"exit codes of drained replicas: {codes}"
    assert answers >= clients * rounds, f"only {answers} answers"
    return {"answers": answers, "drains": rounds}
