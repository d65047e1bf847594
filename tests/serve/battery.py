"""What a server on a network must bear: requests too large, malformed, too slow, gone half-way. After each of them it
answers health checks at once and the next request as if nothing had been.

Each check takes (port, scale): scale 1 is the whole, less is a part of it for a quick run. It returns figures and fails
by an assertion.
"""

import asyncio
import json
import random
import time

import client

HEALTH_S = 0.05  # p99 that is asked for
EARLY_S = 5  # what its first bytes show to be too large is refused by then, not when a time limit ends it
CHAT = {"model": "x", "messages": [{"role": "user", "content": "Tell me about the sea."}], "temperature": 0,
        "max_tokens": 8}
PATHS = {"/v1/chat/completions": CHAT, "/v1/completions": {"model": "x", "prompt": "The sea", "max_tokens": 8},
         "/v1/messages": CHAT, "/v1/responses": {"model": "x", "input": "The sea", "max_output_tokens": 8}}


def refused(answer, statuses, what):
    """One of these statuses with a JSON error that has a message."""
    assert answer is not None, f"{what}: the connection ended without an answer"
    assert answer.status in statuses, f"{what}: {answer.status}, expected {statuses}: {answer.body[:300]!r}"
    error = answer.json().get("error")
    assert isinstance(error, dict) and error.get("message"), f"{what}: no error message in {answer.body[:300]!r}"


async def alive(port):
    answer = await client.request(port, "GET", "/health/live", timeout=10)
    assert answer.status == 200, f"/health/live: {answer.status}"


async def reference(port):
    answer = await client.request(port, "POST", "/v1/chat/completions", CHAT)
    assert answer.status == 200, f"{answer.status} {answer.body[:300]!r}"
    return answer.json()["choices"][0]["message"]["content"]


async def metric(port, name):
    """The sum of a metric's samples."""
    answer = await client.request(port, "GET", "/metrics")
    values = [float(line.rsplit(" ", 1)[1]) for line in answer.body.decode().splitlines()
              if line.split("{")[0].split(" ")[0] == name]
    assert values, f"/metrics has no {name}"
    return sum(values)


async def settles(port, within_s=30):
    """Nothing runs and nothing waits within a time: what clients have left is gone."""
    end = time.monotonic() + within_s
    while True:
        left = [await metric(port, f"vllm:num_requests_{state}") for state in ("running", "waiting")]
        if left == [0, 0]:
            return
        assert time.monotonic() < end, f"{left} requests are running and waiting {within_s} s after their clients left"
        await asyncio.sleep(0.1)


async def oversize(port, scale=1):
    """Heads, bodies, nesting and counts over their limits are refused, early where that saves reading them."""
    cases = {
        "a long target": (b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nhost: x\r\n\r\n", {400, 414, 431}),
        "a long header": (b"GET /health/live HTTP/1.1\r\nhost: x\r\na: " + b"b" * 100_000 + b"\r\n\r\n", {400, 431}),
        "many headers": (b"GET /health/live HTTP/1.1\r\nhost: x\r\n" + b"a: b\r\n" * 5000 + b"\r\n", {400, 431}),
        "a body announced at 1 TB": (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: 1000000000000\r\n\r\n", {413}),
        "a length beyond 64 bits": (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"content-length: 99999999999999999999999\r\n\r\n", {400, 413}),
        "a chunk of 2^64 - 1": (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: application/json\r\n"
            b"transfer-encoding: chunked\r\n\r\nffffffffffffffff\r\n", {413}),
    }
    for what, (data, statuses) in cases.items():
        start = time.monotonic()
        refused(await client.raw(port, data), statuses, what)
        assert time.monotonic() - start < EARLY_S, f"{what}: refused after {time.monotonic() - start:.1f} s"
    deep = b"[" * 100_000 + b"]" * 100_000
    for path in PATHS:
        refused(await client.request(port, "POST", path, deep), {400}, f"deep nesting to {path}")
    many = {**CHAT, "messages": [{"role": "user", "content": "x"}] * 200_000}
    refused(await client.request(port, "POST", "/v1/chat/completions", many), {400, 413}, "200,000 messages")
    for field, value in {"n": 100_000, "max_tokens": -5, "top_logprobs": 10_000, "temperature": 1e300,
                         "logit_bias": {str(i): 1 for i in range(100_000)}}.items():
        refused(await client.request(port, "POST", "/v1/chat/completions", {**CHAT, field: value}), {400}, field)
    long = {**CHAT, "messages": [{"role": "user", "content": "sea " * 200_000}]}
    refused(await client.request(port, "POST", "/v1/chat/completions", long), {400}, "a prompt over the context")
    await alive(port)
    return {"cases": len(cases) + len(PATHS) + 7}


def malformed_bodies(count, seed=1):
    """Bodies near a good one: cut, with bytes changed, with fields of other types."""
    rng = random.Random(seed)
    good = json.dumps(CHAT).encode()
    values = [None, True, -1, 1e400, "", "x", [], {}, [[]], {"a": 1}, "\ud800".encode("utf-16", "surrogatepass").hex()]
    for _ in range(count):
        kind = rng.randrange(3)
        if kind == 0:
            yield good[:rng.randrange(len(good))]
        elif kind == 1:
            at = rng.randrange(len(good))
            yield good[:at] + bytes([rng.randrange(256)]) + good[at + 1:]
        else:
            body = json.loads(good)
            body[rng.choice([*body, "tools", "stop", "response_format", "stream", "logit_bias", "seed"])] = rng.choice(values)
            yield json.dumps(body).encode()


async def malformed(port, scale=1):
    """No request line, head or body whatever makes anything but a 4xx, an answer, or an end."""
    raw = {
        "no request line": b"\r\n\r\n\r\n", "binary": bytes(range(256)) * 4, "HTTP/0.9": b"GET /\r\n\r\n",
        "a method with a space": b"GE T / HTTP/1.1\r\nhost: x\r\n\r\n", "no host": b"GET /health/live HTTP/1.1\r\n\r\n",
        "two hosts": b"GET /health/live HTTP/1.1\r\nhost: a\r\nhost: b\r\n\r\n",
        "length and coding": b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 4\r\n"
                             b"transfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "two lengths": b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 4\r\ncontent-length: 5\r\n\r\nabcde",
        "a negative length": b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: -1\r\n\r\n",
        "a folded header": b"GET /health/live HTTP/1.1\r\nhost: 127.0.0.1\r\na: b\r\n c\r\n\r\n",
        "a bare CR": b"GET /health/live HTTP/1.1\rhost: 127.0.0.1\r\r", "a NUL": b"GET /\0 HTTP/1.1\r\nhost: x\r\n\r\n",
        "a chunk that is no number": b"POST /v1/completions HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: "
                                     b"application/json\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        "HTTP/2": b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    }
    for what, data in raw.items():
        connection = await client.Connection.open(port)
        try:
            await connection.send(data)
            connection.writer.write_eof()
            try:
                answer = await connection.read(20)
                assert 400 <= answer.status < 506 and answer.status != 500, f"{what}: {answer.status}"
            except (asyncio.IncompleteReadError, ConnectionError):
                pass  # an end without a word is an answer too
        finally:
            connection.close()
    count = max(20, int(500 * scale))
    for i, body in enumerate(malformed_bodies(count)):
        answer = await client.request(port, "POST", [*PATHS][i % len(PATHS)], body)
        if answer.status != 200:
            refused(answer, {400, 404}, f"body {body[:200]!r}")
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        answer = await client.request(port, "POST", "/v1/chat/completions", CHAT, {"content-type": kind})
        refused(answer, {415}, f"content type {kind!r}")
    refused(await client.request(port, "POST", "/v1/chat/completions", b"x" * 100, {"content-encoding": "zstd"}), {415},
            "a compressed body")
    refused(await client.request(port, "PUT", "/v1/chat/completions", CHAT), {405}, "PUT")
    refused(await client.request(port, "GET", "/no/such/route"), {404}, "an unknown route")
    await alive(port)
    return {"heads": len(raw), "bodies": count}


async def drip(port, data, pause_s):
    """Sends a byte at a time; returns seconds until the server ended it."""
    connection = await client.Connection.open(port)
    start = time.monotonic()
    try:
        for i in range(len(data)):
            await connection.send(data[i:i + 1])
            try:
                if not await asyncio.wait_for(connection.reader.read(65536), pause_s):
                    return time.monotonic() - start
            except TimeoutError:
                pass
    except ConnectionError:
        pass
    finally:
        connection.close()
    return time.monotonic() - start


async def slow_loris(port, scale=1):
    """Heads that come a byte a second are cut off in time, and health checks do not wait for them."""
    count = max(20, int(300 * scale))
    head = b"POST /v1/chat/completions HTTP/1.1\r\nhost: 127.0.0.1\r\n" + b"a: bcdefgh\r\n" * 20
    drips = asyncio.gather(*(drip(port, head, 1.0) for _ in range(count)))
    await asyncio.sleep(1)
    health = await client.latencies(port, "/health/live", max(30, int(200 * scale)))
    seconds = await asyncio.wait_for(drips, 120)
    assert max(seconds) < 60, f"a head of {len(head)} bytes was waited for {max(seconds):.0f} s"
    p99 = client.quantile(health, 0.99)
    assert p99 < HEALTH_S, f"/health/live p99 {1000 * p99:.1f} ms beside {count} slow heads"
    await alive(port)
    return {"connections": count, "cut_after_s": round(max(seconds), 1), "health_p99_ms": round(1000 * p99, 1)}


async def leave(port, path, body, after_s):
    """Sends a request and goes away without a word; says in which phase that was."""
    connection = await client.Connection.open(port)
    phase = "queue or prefill"
    try:
        await connection.send(client.encode("POST", path, body))
        async with asyncio.timeout(after_s):
            await connection.reader.readuntil(b"data:")
            phase = "decode"
            await connection.reader.read()
            phase = "after the end"
    except TimeoutError:
        pass
    finally:
        connection.abort()
    return phase


async def disconnects(port, scale=1):
    """Clients that go away in queue, prefill and decode leave nothing behind and disturb no neighbour."""
    expected = await reference(port)
    rng = random.Random(2)
    count = max(40, int(400 * scale))
    phases = {}

    async def one(i):
        words = rng.choice([3, 40, 150])
        body = {**CHAT, "stream": True, "max_tokens": 200,
                "messages": [{"role": "user", "content": f"{i} " + "sea " * words}]}
        phase = await leave(port, "/v1/chat/completions", body, rng.choice([0.0, 0.01, 0.05, 0.2, 0.6]))
        phases[phase] = phases.get(phase, 0) + 1

    for first in range(0, count, 40):
        neighbours = [reference(port) for _ in range(4)]
        said = (await asyncio.gather(*(one(i) for i in range(first, min(first + 40, count))), *neighbours))[-4:]
        assert said == [expected] * 4, f"a neighbour of clients that left said {said}, alone {expected!r}"
    await settles(port)
    assert await reference(port) == expected
    return {"clients": count, **{f"left in {k}": v for k, v in sorted(phases.items())}}


async def idle_streams(port, scale=1):
    """Open streams whose answers wait in the queue, by the thousand, and health checks beside them."""
    count = max(100, int(1000 * scale))
    body = {**CHAT, "stream": True, "max_tokens": 200}
    connections = []
    try:
        statuses = []
        while len(connections) < count:  # a hundred at a time: how many may be read at once is another limit
            some = [await client.Connection.open(port) for _ in range(min(100, count - len(connections)))]
            connections += some
            for connection in some:
                await connection.send(client.encode("POST", "/v1/chat/completions", body))
            statuses += [head.status for head in await asyncio.gather(*(c.head(60) for c in some))]
        open_streams = statuses.count(200)
        assert open_streams == count, f"{open_streams} of {count} streams are open: {sorted(set(statuses))}"
        health = await client.latencies(port, "/health/live", max(100, int(1000 * scale)), 0.005)
    finally:
        for connection in connections:
            connection.abort()
    p99 = client.quantile(health, 0.99)
    assert p99 < HEALTH_S, f"/health/live p99 {1000 * p99:.1f} ms beside {count} open streams"
    await settles(port, 60)
    return {"streams": count, "health_p50_ms": round(1000 * client.quantile(health, 0.5), 1),
            "health_p99_ms": round(1000 * p99, 1)}


BATTERY = [oversize, malformed, slow_loris, disconnects, idle_streams]
