"""Thousands of mixed requests against one server: all are answered, memory does not grow after the warm-up."""

import asyncio
import random
import statistics
import time

import battery
import client

GROWTH = 0.01  # of resident memory, at most
WORKERS = 8
# What is kept of answers is full when the warm-up ends: after it, memory has no right to grow.
BOUNDED = ["--replay-memory", "64K"]


def mixed(rng):
    """(kind, path, body): what clients do, good and bad."""
    words = " ".join(rng.choice(["sea", "wind", "ship", "salt", "gull", "wave"]) for _ in range(rng.randrange(1, 60)))
    session = rng.randrange(50)
    messages = [{"role": "system", "content": f"You are captain {session}."}]
    for turn in range(rng.randrange(3)):
        messages += [{"role": "user", "content": f"order {turn}"}, {"role": "assistant", "content": f"aye {turn}"}]
    messages.append({"role": "user", "content": words})
    tokens = rng.randrange(1, 24)
    chat = {"model": "x", "messages": messages, "max_tokens": tokens, "seed": rng.randrange(1000)}
    kinds = {
        "chat": ("/v1/chat/completions", chat),
        "stream": ("/v1/chat/completions", {**chat, "stream": True}),
        "logprobs": ("/v1/chat/completions", {**chat, "logprobs": True, "top_logprobs": 3}),
        "completion": ("/v1/completions", {"model": "x", "prompt": words, "max_tokens": tokens}),
        "score": ("/v1/completions", {"model": "x", "prompt": words, "max_tokens": 0, "echo": True, "logprobs": 1}),
        "messages": ("/v1/messages", {"model": "x", "messages": messages[1:], "max_tokens": tokens}),
        "responses": ("/v1/responses", {"model": "x", "input": words, "store": False, "max_output_tokens": max(16, tokens)}),
        "tokenize": ("/tokenize", {"content": words}),
        "json": ("/v1/chat/completions", {**chat, "max_tokens": 40, "response_format": {"type": "json_object"}}),
        "bad": ("/v1/chat/completions", {**chat, "temperature": "hot"}),
        "gone": ("/v1/chat/completions", {**chat, "stream": True, "max_tokens": 200}),
    }
    kind = rng.choice([*kinds])
    return (kind, *kinds[kind])


async def one(port, rng, counts):
    kind, path, body = mixed(rng)
    if kind == "gone":
        await battery.leave(port, path, body, rng.uniform(0, 0.1))
    elif kind == "stream":
        answer, events = await client.stream(port, path, body)
        assert answer.status == 200 and events[-1][1] == "[DONE]", f"{kind}: {answer.status} {answer.body[-300:]!r}"
    else:
        answer = await client.request(port, "POST", path, body)
        expected = 400 if kind == "bad" else 200
        assert answer.status == expected, f"{kind}: {answer.status} {answer.body[:300]!r}"
    counts[kind] = counts.get(kind, 0) + 1


async def soak(server, requests=5000, seconds=None, warm_up=1500, most=GROWTH):
    """`requests` after `warm_up` of them, or for `seconds`, a third of which is the warm-up."""
    rng, counts = random.Random(3), {}
    start, done, warmed, samples = time.monotonic(), 0, 0, []

    def warm():
        return done >= warm_up if seconds is None else time.monotonic() - start >= seconds / 3

    def over():
        return done >= warm_up + requests if seconds is None else time.monotonic() - start >= seconds

    async def worker():
        nonlocal done
        while not over():
            await one(server.port, rng, counts)
            done += 1

    async def watch():
        nonlocal warmed
        while not over():
            if warm():
                warmed = warmed or done
                samples.append(server.rss_kb())
            await asyncio.sleep(0.5)

    await asyncio.gather(watch(), *(worker() for _ in range(WORKERS)))
    await battery.settles(server.port)
    assert len(samples) >= 10, f"only {len(samples)} samples of memory after the warm-up: {done} requests in all"
    fifth = max(2, len(samples) // 5)
    first, last = statistics.median(samples[:fifth]), statistics.median(samples[-fifth:])
    growth = last / first - 1
    assert growth <= most, f"resident memory grew by {100 * growth:.2f} % after the warm-up, {first} to {last} kB"
    return {"requests": done, "after_warm_up": done - warmed, "rss_kb": int(last), "growth_percent": round(100 * growth, 2),
            **{f"of {k}": v for k, v in sorted(counts.items())}}
