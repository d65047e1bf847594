"""A recording proxy on loopback between an agent and its server: passes bytes on as they come, keeps both sides."""

import http.client
import http.server
import json
import threading
import time

HOP = {"connection", "transfer-encoding", "keep-alive", "content-length", "host"}


class Exchange:
    """One request and its answer."""

    def __init__(self, method, path, headers, body):
        self.method, self.path, self.headers, self.body = method, path, headers, body
        self.status, self.answer_headers, self.answer = 0, {}, b""
        self.started, self.first_byte, self.ended = time.monotonic(), None, None
        self.complete = False

    def json(self):
        return json.loads(self.body)


class Recorder:
    def __init__(self, upstream_port):
        self.exchanges = []
        recorder = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def handle_any(self):
                recorder.pass_on(self, upstream_port)

            do_GET = do_POST = do_HEAD = do_DELETE = do_OPTIONS = handle_any

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_address[1]

    def __enter__(self):
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        return self

    def __exit__(self, *_):
        self.server.shutdown()
        self.server.server_close()

    def pass_on(self, client, upstream_port):
        exchange = Exchange(client.command, client.path, {k.lower(): v for k, v in client.headers.items()},
                            read_body(client))
        self.exchanges.append(exchange)
        connection = http.client.HTTPConnection("127.0.0.1", upstream_port, timeout=600)
        try:
            headers = {k: v for k, v in exchange.headers.items() if k not in HOP}
            connection.request(client.command, client.path, exchange.body or None, headers)
            answer = connection.getresponse()
            exchange.status = answer.status
            exchange.answer_headers = {k.lower(): v for k, v in answer.getheaders()}
            client.send_response(answer.status)
            for name, value in answer.getheaders():
                if name.lower() not in HOP:
                    client.send_header(name, value)
            client.send_header("connection", "close")
            client.end_headers()
            while data := answer.read1(65536):
                exchange.first_byte = exchange.first_byte or time.monotonic()
                exchange.answer += data
                client.wfile.write(data)
                client.wfile.flush()
            exchange.complete = True
        except OSError:
            pass  # either side is gone; `complete` tells
        finally:
            exchange.ended = time.monotonic()
            client.close_connection = True
            connection.close()


def read_body(client):
    length = client.headers.get("content-length")
    if length:
        return client.rfile.read(int(length))
    if "chunked" not in client.headers.get("transfer-encoding", ""):
        return b""
    body = b""
    while size := int(client.rfile.readline().split(b";")[0], 16):
        body += client.rfile.read(size)
        client.rfile.readline()
    client.rfile.readline()
    return body
