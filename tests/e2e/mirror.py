"""A mirror on the loopback that breaks connections, refuses ranges or sends wrong bytes when it is told to."""

import contextlib
import re
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Mirror:
    """files: name -> bytes. `break_after`: bytes after which a connection ends; `slow`: seconds between blocks. `tls`: an
    ssl.SSLContext; connections that do not agree on it are no requests."""

    def __init__(self, files, tls=None):
        self.files, self.ranges, self.break_after, self.slow, self.requests = files, True, None, 0, []
        mirror = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self):
                mirror.answer(self)

            def log_message(self, *_):
                pass

            def handle(self):
                with contextlib.suppress(OSError):  # a client that does not believe the certificate
                    super().handle()

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        if tls:
            self.server.socket = tls.wrap_socket(self.server.socket, server_side=True, do_handshake_on_connect=False)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.server.server_port}/models"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def answer(self, request):
        wanted = request.headers.get("Range")
        self.requests.append((request.path, wanted))
        body = self.files.get(request.path.removeprefix("/models/"))
        if body is None:
            request.send_error(404)
            return
        begin = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) if wanted and self.ranges else 0
        request.send_response(206 if begin else 200)
        if begin:
            request.send_header("Content-Range", f"bytes {begin}-{len(body) - 1}/{len(body)}")
        request.send_header("Content-Length", str(len(body) - begin))
        request.end_headers()
        end = len(body) if self.break_after is None else min(len(body), begin + self.break_after)
        event = threading.Event()
        try:
            for at in range(begin, end, 1 << 16):
                request.wfile.write(body[at : min(end, at + (1 << 16))])
                if self.slow:
                    event.wait(self.slow)
        except OSError:
            pass
        if end < len(body):
            request.close_connection = True
            request.connection.shutdown(2)

    def close(self):
        self.server.shutdown()
        self.server.server_close()
