"""`sparkinfer bench serve` against a server whose delays, caches and refusals are known."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

FIRST_S, GAP_S = 0.05, 0.02


class Server(ThreadingHTTPServer):
    """Answers tokens after FIRST_S, then every GAP_S; counts the longest common beginning with an earlier chat as cached."""

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, tokenizer=True, refuse=lambda n: None, key=None):
        super().__init__(("127.0.0.1", 0), Handler)
        self.tokenizer, self.refuse, self.key = tokenizer, refuse, key
        self.lock, self.bodies, self.arrivals, self.running, self.running_max = threading.Lock(), [], [], 0, 0


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, value):
        body = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.server.key and self.headers["Authorization"] != f"Bearer {self.server.key}":
            return self.answer(401, {"error": {"message": "no key"}})
        return self.answer(200, {"data": [{"id": "stub-model"}]})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if self.path == "/tokenize":
            words = body["content"].split()
            return self.answer(200, {"tokens": list(range(100, 100 + len(words)))}) if self.server.tokenizer else self.answer(404, {})
        server = self.server
        with server.lock:
            number = len(server.bodies)
            earlier = [b["messages"] for b in server.bodies if "messages" in b]
            server.bodies.append(body)
            server.arrivals.append(time.monotonic())
            server.running += 1
            server.running_max = max(server.running_max, server.running)
        try:
            if refusal := server.refuse(number):
                return self.answer(*refusal)
            self.stream(body, earlier)
        finally:
            with server.lock:
                server.running -= 1

    def event(self, value):
        data = f"data: {value if isinstance(value, str) else json.dumps(value)}\n\n".encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")

    def stream(self, body, earlier):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.event({"choices": [{"delta": {"role": "assistant", "content": ""}}]})
        chat = "messages" in body
        for i in range(body["max_tokens"]):
            time.sleep(GAP_S if i else FIRST_S)
            self.event({"choices": [{"delta": {"content": f" t{i}"}}] if chat else [{"text": f" t{i}"}]})
        size = lambda messages: sum(len(str(m["content"]).split()) for m in messages)    # noqa: E731
        shared = [m for m in earlier if chat and body["messages"][: len(m)] == m]
        usage = {
            "prompt_tokens": size(body["messages"]) if chat else len(body["prompt"]),
            "completion_tokens": body["max_tokens"],
            "prompt_tokens_details": {"cached_tokens": max(map(size, shared), default=0)},
        }
        self.event({"choices": [], "usage": usage})
        self.event("[DONE]")
        self.wfile.write(b"0\r\n\r\n")


@contextmanager
def serving(**options):
    server = Server(**options)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server, f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def rows(execute, url, *arguments):
    code, out, err = execute("bench", "serve", url, *arguments, "-o", "json")
    assert code == 0, err.decode()
    return json.loads(out)


def test_closed_loop_measures_what_clients_wait(execute):
    with serving() as (server, url):
        (row,) = rows(execute, url, "-c", "4", "-r", "8", "-p", "32", "-n", "6")
    assert server.running_max == 4
    load = server.bodies[1:]    # the first one warms up
    assert [len(b["prompt"]) for b in load] == [32] * 8 and len({str(b["prompt"]) for b in load}) == 8
    assert all(b["max_tokens"] == 6 and b["ignore_eos"] and b["stream"] and b["model"] == "stub-model" for b in load)
    assert set(load[0]["prompt"]) <= set(range(100, 160))
    assert (row["clients"], row["requests"], row["failed"], row["errors"]) == (4, 8, 0, {})
    assert (row["prompt_tokens"], row["completion_tokens"], row["cached_share"]) == (8 * 32, 8 * 6, 0)
    # Sleeps are never shorter than asked for; a busy machine makes them longer.
    answer_s = FIRST_S + 5 * GAP_S
    assert FIRST_S * 1e3 <= row["ttft_ms"]["p50"] < FIRST_S * 1e3 + 500
    assert GAP_S * 1e3 * 0.5 <= row["itl_ms"]["p50"] < GAP_S * 1e3 + 200
    assert answer_s <= row["e2e_s"]["p50"] < answer_s + 2
    assert row["ttft_ms"]["p50"] <= row["ttft_ms"]["p90"] <= row["ttft_ms"]["p99"] <= row["ttft_ms"]["max"]
    assert row["seconds"] >= 2 * answer_s
    assert row["tokens_per_s"] == pytest.approx(8 * 6 / row["seconds"])


def test_open_loop_does_not_wait_for_answers(execute):
    """40 requests a second of 0.15 s each: about 6 are under way at once whatever the server does."""
    with serving() as (server, url):
        (row,) = rows(execute, url, "--rate", "40", "-r", "30", "-p", "4", "-n", "6", "--seed", "3")
    assert row["rate"] == 40 and row["requests"] == 30 and row["failed"] == 0
    assert server.running_max >= 3
    arrivals = server.arrivals[1:]
    gaps = [b - a for a, b in zip(arrivals, arrivals[1:])]
    assert 0.3 < arrivals[-1] - arrivals[0] < 5
    assert min(gaps) < 0.5 * sum(gaps) / len(gaps) < max(gaps)    # random, not evenly spread


def test_sessions_only_append_and_report_what_was_cached(execute):
    with serving() as (server, url):
        (row,) = rows(execute, url, "-c", "2", "--turns", "3", "-p", "50", "--turn-words", "10", "-n", "4")
    chats = sorted((b["messages"] for b in server.bodies[1:]), key=len)
    assert [len(c) for c in chats] == [2, 2, 4, 4, 6, 6]
    for longer in chats[2:]:
        assert any(longer[: len(c)] == c for c in chats if len(c) == len(longer) - 2)
        assert longer[-2] == {"role": "assistant", "content": " t0 t1 t2 t3"}
    assert len(row["turns"]) == 3 and [t["requests"] for t in row["turns"]] == [2, 2, 2]
    assert row["turns"][0]["cached_share"] == 0
    assert row["turns"][1]["cached_tokens"] == 2 * 60 and row["turns"][1]["prompt_tokens"] == 2 * 74
    assert row["cached_share"] == pytest.approx(row["cached_tokens"] / row["prompt_tokens"])


def test_a_trace_is_replayed(execute, refused, tmp_path):
    trace = tmp_path / "trace.jsonl"
    turns = [
        {"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}], "tools": [{"type": "function"}]},
        {"messages": [{"role": "assistant", "content": "recorded"}, {"role": "user", "content": "v"}], "max_tokens": 2},
    ]
    trace.write_text("\n".join(map(json.dumps, turns)) + "\n\n")
    with serving() as (server, url):
        (row,) = rows(execute, url, "--trace", trace, "-n", "3")
        first, second = server.bodies[1:]
        assert [m["content"] for m in second["messages"]] == ["s", "u", "recorded", "v"]
        assert first["max_tokens"] == 3 and second["max_tokens"] == 2 and second["tools"] == [{"type": "function"}]
        assert row["completion_tokens"] == 5
        trace.write_text('{"messages": []}\n')
        assert refused(3, "bench", "serve", url, "--trace", trace) == f"{trace}:1: messages is empty, expected at least one"
        trace.write_text(json.dumps(turns[0]) + "\n{\n")
        assert f"{trace}:2" in refused(3, "bench", "serve", url, "--trace", trace)


def test_refusals_are_counted_and_not_measured(execute):
    busy = (429, {"error": {"message": "busy"}})
    with serving(refuse=lambda n: busy if n % 2 == 0 and n else None) as (_, url):
        (row,) = rows(execute, url, "-c", "1", "-r", "6", "-p", "4", "-n", "2")
        assert (row["requests"], row["failed"], row["errors"]) == (6, 3, {"status 429: busy": 3})
        assert row["ttft_ms"]["p50"] >= FIRST_S * 1e3
        code, out, err = execute("bench", "serve", url, "-r", "2", "-p", "4", "-n", "2")
        assert code == 0 and "1 of 2 failed: status 429: busy" in err.decode()
        assert out.decode().splitlines()[2].split("|")[1:4] == ["         1 client ", "        2 ", "      1 "]


def test_without_tokenize_prompts_are_words(execute):
    with serving(tokenizer=False) as (server, url):
        rows(execute, url, "-r", "1", "-p", "12", "-n", "1")
    assert len(server.bodies[1]["prompt"].split()) == 12


def test_keys_are_sent(execute, refused, tmp_path):
    keys = tmp_path / "key"
    keys.write_text("secret\n")
    with serving(key="secret") as (_, url):
        assert rows(execute, url, "-r", "1", "-n", "1", "--api-key-file", keys)[0]["failed"] == 0
        assert refused(3, "bench", "serve", url) == "/v1/models: status 401: no key"


def test_what_cannot_be_measured_is_said(refused):
    with serving() as (_, url):
        pass
    assert refused(4, "bench", "serve", url) == f"{url}: cannot connect: Connection refused"
    assert "expected http://" in refused(2, "bench", "serve", "https://localhost")
    assert "--rate is 'x'" in refused(2, "bench", "serve", url, "--rate", "1,x")
    assert "expected --clients" in refused(2, "bench", "serve", url, "--rate", "1", "--turns", "2")
    assert "expected one of them" in refused(2, "bench", "serve", url, "--trace", "x", "--turns", "2")
    assert "did you mean '--clients'" in refused(2, "bench", "serve", url, "--client", "1")
