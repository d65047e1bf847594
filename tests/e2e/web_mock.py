"""A server that serves src/server/web under its content security policy and plays the endpoints the pages call.

A test scripts the next answers: `server.answers.append([...])` of steps, each a delta (dict), a `Hold` (waits until
the test lets it go), a `Usage`, a `Finish`, an `Error` or `CUT` (the connection breaks off). What came in is in `requests`.
"""

import contextlib
import json
import socket
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

WEB = Path(__file__).resolve().parent.parent.parent / "src" / "server" / "web"
CSP = ("default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; font-src 'self'; "
       "base-uri 'none'; form-action 'none'; frame-ancestors 'none'")
TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
CUT = object()


class Hold:
    def __init__(self):
        self.go, self.reached = threading.Event(), threading.Event()


@dataclass
class Usage:
    prompt: int
    completion: int
    cached: int = 0
    reasoning: int = 0


@dataclass
class Finish:
    reason: str = "stop"


@dataclass
class Error:
    status: int
    message: str
    code: str = ""
    retry_after: int = 0


def text(*pieces):
    return [{"content": piece} for piece in pieces]


@dataclass
class MockServer:
    answers: list = field(default_factory=list)
    requests: list = field(default_factory=list)
    key: str = ""
    ready: bool = True
    context: int = 8192
    dashboard: dict = field(default_factory=dict)
    gone: threading.Event = field(default_factory=threading.Event)    # set when a client leaves in mid-stream
    port: int = 0
    sockets: set = field(default_factory=set)

    def start(self):
        mock = self

        class Handler(_Handler):
            server_state = mock

        self.http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self.http.daemon_threads = True
        self.port = self.http.server_address[1]
        threading.Thread(target=self.http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def stop(self):
        """As a process that ends: connections that are kept alive break off too."""
        self.http.shutdown()
        self.http.server_close()
        for connection in list(self.sockets):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}/"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    server_state: MockServer

    def setup(self):
        super().setup()
        self.server_state.sockets.add(self.connection)

    def finish(self):
        self.server_state.sockets.discard(self.connection)
        super().finish()

    def log_message(self, *_):
        pass

    def send(self, status, kind, body, **headers):
        self.send_response(status)
        self.send_header("Content-Type", f"{kind}; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", CSP)
        self.send_header("X-Content-Type-Options", "nosniff")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def json(self, value, status=200, **headers):
        self.send(status, "application/json", json.dumps(value).encode(), **headers)

    def error(self, e):
        body = {"error": {"message": e.message, "type": "invalid_request_error", "code": e.code or None, "param": None}}
        self.json(body, e.status, **({"Retry_After": str(e.retry_after)} if e.retry_after else {}))

    def allowed(self):
        key = self.server_state.key
        if not key or self.headers.get("Authorization") == f"Bearer {key}":
            return True
        self.error(Error(401, "no API key", "invalid_api_key"))
        return False

    def do_GET(self):
        state, path = self.server_state, self.path.split("?")[0]
        pages = {"/": "index.html", "/dashboard": "dashboard.html"}
        name = pages.get(path) or (path.removeprefix("/static/") if path.startswith("/static/") else "")
        if path == "/health/ready":
            self.json({"status": "ready"} if state.ready else {"status": "loading"}, 200 if state.ready else 503)
        elif name and "/" not in name and (WEB / name).is_file():
            self.send(200, TYPES[Path(name).suffix], (WEB / name).read_bytes(), Cache_Control="no-cache")
        elif path == "/v1/models" and self.allowed():
            self.json({"object": "list", "data": [{"id": "mock-7b", "object": "model", "max_model_len": state.context}]})
        elif path == "/dashboard/data" and self.allowed():
            self.json(state.dashboard)
        elif path not in ("/v1/models", "/dashboard/data"):
            self.error(Error(404, f"there is nothing at {path}"))

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path != "/v1/chat/completions" or not self.allowed():
            return
        state = self.server_state
        assert self.headers["Content-Type"] == "application/json"
        state.requests.append(json.loads(body))
        steps = state.answers.pop(0) if state.answers else [*text("An answer without a script."), Finish(), Usage(10, 5)]
        if steps and isinstance(steps[0], Error):
            self.error(steps[0])
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Cache-Control", "no-cache")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        try:
            self.stream(steps)
        except (BrokenPipeError, ConnectionResetError):
            state.gone.set()

    def stream(self, steps):
        head = {"id": "chatcmpl-1", "object": "chat.completion.chunk", "created": 1, "model": "mock-7b"}

        def chunk(**more):
            self.wfile.write(f"data: {json.dumps(head | more)}\n\n".encode())

        self.wfile.write(b": keep-alive\n\n")
        chunk(choices=[{"index": 0, "delta": {"role": "assistant", "content": ""}}])
        for step in steps:
            if isinstance(step, Hold):
                step.reached.set()
                while not step.go.wait(0.1):
                    self.wfile.write(b": keep-alive\n\n")    # notices a client that left
            elif isinstance(step, Finish):
                chunk(choices=[{"index": 0, "delta": {}, "finish_reason": step.reason}])
            elif isinstance(step, Usage):
                chunk(choices=[], usage={
                    "prompt_tokens": step.prompt, "completion_tokens": step.completion, "total_tokens": step.prompt + step.completion,
                    "prompt_tokens_details": {"cached_tokens": step.cached},
                    "completion_tokens_details": {"reasoning_tokens": step.reasoning}})
            elif isinstance(step, Error):
                self.wfile.write(f"data: {json.dumps({'error': {'message': step.message, 'code': step.code}})}\n\n".encode())
                return
            elif step is CUT:
                return
            else:
                chunk(choices=[{"index": 0, "delta": step}])
        self.wfile.write(b"data: [DONE]\n\n")
