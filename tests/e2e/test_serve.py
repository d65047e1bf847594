"""`sparkinfer serve` as a process: addresses, signals, keys, what cannot be begun. Its protocols have tests of their own."""

import http.client
import json
import os
import re
import signal
import socket
import ssl
import subprocess
import time

START_S = 120


class Serve:
    """A server of its own port, which it says on stdout when it is ready."""

    def __init__(self, binary, model, *options, ready=True):
        command = [str(binary), "serve", str(model), "--port", "0", "--slots", "2", *map(str, options)]
        self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                        stderr=subprocess.PIPE, text=True)
        self.said = []
        while ready and not (self.said and self.said[-1].startswith("try: ")):
            line = self.process.stdout.readline()
            assert line, self.process.stderr.read()
            self.said.append(line)
        ports = re.findall(r"^serving \S+ at https?://127\.0\.0\.1:(\d+) ", "".join(self.said), re.MULTILINE)
        self.port = int(ports[0]) if ports else None

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.process.stdout.close()
        self.process.stderr.close()

    def ask(self, method, path, body=None, headers=()):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        connection.request(method, path, body, dict(headers))
        answer = connection.getresponse()
        data = answer.read()
        connection.close()
        return answer.status, data

    def end(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        code = self.process.wait(60)
        return code, self.process.stderr.read()


# Risk: what stands in the way is found after the model was loaded, or told in many words.
def test_says_what_stands_in_the_way(refused, tiny, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        assert refused(4, "serve", tiny, "--port", port) == \
            f"cannot listen on 127.0.0.1:{port}: another program does already"
    assert "missing.txt" in refused(3, "serve", tiny, "--port", 0, "--api-key-file", tmp_path / "missing.txt")
    (tmp_path / "keys").write_text("# none\n")
    (tmp_path / "keys").chmod(0o600)
    assert "holds no key" in refused(3, "serve", tiny, "--port", 0, "--api-key-file", tmp_path / "keys")
    (tmp_path / "pem").write_text("nothing")
    assert "--tls-cert" in refused(3, "serve", tiny, "--port", 0, "--tls-cert", tmp_path / "pem", "--tls-key", tmp_path / "pem")
    assert "--api-key-file" in refused(2, "serve", tiny, "--host", "0.0.0.0")
    (tmp_path / "file").write_text("mine")
    assert "no socket" in refused(3, "serve", tiny, "--unix", tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"


# Risk: a model that cannot be served leaves a server that never becomes ready.
def test_a_model_that_cannot_be_served_ends_it(binary, tiny, tmp_path):
    for model, options, code, word in [(tmp_path / "no.gguf", [], 3, "no.gguf"), (tiny, ["--ctx", "9999999"], 2, "--ctx"),
                                       (tiny, ["--kv-memory", "1K"], 4, "--kv-memory")]:
        with Serve(binary, model, *options, ready=False) as server:
            assert server.process.wait(START_S) == code
            errors = [line for line in server.process.stderr.read().splitlines() if "error:" in line]
            assert len(errors) == 1 and word in errors[0], errors
            assert server.process.stdout.read() == ""


# Risk: the line that is printed does not work; health, metrics and the log are not there.
def test_serves_and_drains(binary, tiny):
    with Serve(binary, tiny, "--log-format", "json", "--grace", "20") as server:
        assert server.said[0].startswith(f"serving {tiny.stem} at http://127.0.0.1:")
        assert f"http://127.0.0.1:{server.port}/v1/chat/completions" in server.said[1]
        for path in ["/health/live", "/health/ready", "/health", "/metrics", "/dashboard/data"]:
            status, data = server.ask("GET", path)
            assert status == 200, (path, data)
        figures = json.loads(server.ask("GET", "/dashboard/data")[1])
        assert figures["model"] == tiny.stem and figures["requests"]["slots"] == 2
        assert b"vllm:num_requests_running" in server.ask("GET", "/metrics")[1]
        assert server.ask("GET", "/nothing")[0] == 404
        assert server.ask("GET", "/health/live", headers={"host": "evil.example"})[0] == 403
        code, err = server.end()
        assert code == 0
        lines = [json.loads(line) for line in err.splitlines() if line.startswith("{")]
        assert sorted(line["status"] for line in lines) == [403, 404]  # of two connections, in any order


# Risk: a second Ctrl-C does not end a server whose requests go on and on; or the first one does.
def test_a_second_signal_ends_at_once(binary, tiny):
    with Serve(binary, tiny, "--grace", "600") as server:
        body = json.dumps({"prompt": "a", "max_tokens": 1000, "ignore_eos": True, "stream": True})
        clients = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(40)]
        for client in clients:
            client.sendall(f"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
                           f"content-length: {len(body)}\r\n\r\n{body}".encode())
        assert clients[0].recv(12) == b"HTTP/1.1 200"
        server.process.send_signal(signal.SIGINT)
        time.sleep(0.5)
        assert server.process.poll() is None
        assert server.ask("GET", "/health/ready")[0] == 503
        server.process.send_signal(signal.SIGINT)
        assert server.process.wait(10) == 130
        for client in clients:
            client.close()


# Risk: keys are not asked for, or SIGHUP ends the server, or a bad file opens it.
def test_keys_are_read_again(binary, tiny, tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("first-key-1\n")
    os.chmod(keys, 0o600)
    with Serve(binary, tiny, "--api-key-file", keys) as server:
        def status(key):
            return server.ask("GET", "/metrics", headers={"authorization": f"Bearer {key}"})[0]

        def becomes(key, wanted):
            end = time.monotonic() + 20
            while status(key) != wanted and time.monotonic() < end:
                time.sleep(0.1)
            return status(key) == wanted

        assert server.ask("GET", "/health/ready")[0] == 200
        assert server.ask("GET", "/metrics")[0] == 401
        assert status("first-key-1") == 200 and status("second-key-1") == 401
        keys.write_text("second-key-1\n")
        server.process.send_signal(signal.SIGHUP)
        assert becomes("second-key-1", 200) and status("first-key-1") == 401
        keys.write_text("bad\n")
        server.process.send_signal(signal.SIGHUP)
        time.sleep(1)
        assert status("second-key-1") == 200 and status("bad") == 401
        code, err = server.end()
        assert code == 0 and "stay as they were" in err


# Risk: TLS and unix sockets work in tests of parts alone.
def test_tls_and_unix_socket(binary, tiny, tmp_path):
    cert, key, path = tmp_path / "c.pem", tmp_path / "k.pem", tmp_path / "socket"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost", "-out", cert, "-keyout", key], check=True, capture_output=True)
    with Serve(binary, tiny, "--tls-cert", cert, "--tls-key", key, "--unix", path, "--host", "127.0.0.1") as server:
        context = ssl.create_default_context(cafile=str(cert))
        with socket.create_connection(("127.0.0.1", server.port)) as raw, \
                context.wrap_socket(raw, server_hostname="localhost") as tls:
            tls.sendall(b"GET /health/ready HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
            assert tls.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        with socket.socket(socket.AF_UNIX) as local:
            local.connect(str(path))
            local.sendall(b"GET /health/ready HTTP/1.1\r\nhost: localhost\r\n\r\n")
            assert local.recv(65536).startswith(b"HTTP/1.1 200 OK\r\n")
        assert path.stat().st_mode & 0o777 == 0o600

        def shown():
            return ssl.get_server_certificate(("127.0.0.1", server.port))

        # A new certificate is taken at SIGHUP, half of one is not.
        old = shown()
        subprocess.run(["openssl", "req", "-x509", "-key", key, "-days", "3", "-subj", "/CN=localhost", "-out", cert],
                       check=True, capture_output=True)
        assert shown() == old
        server.process.send_signal(signal.SIGHUP)
        end = time.monotonic() + 20
        while shown() == old and time.monotonic() < end:
            time.sleep(0.1)
        new = shown()
        assert new != old and new.split() == cert.read_text().split()
        cert.write_text("no certificate")
        server.process.send_signal(signal.SIGHUP)
        time.sleep(1)
        assert shown() == new
        code, err = server.end()
        assert code == 0 and "the certificate stays as it was: --tls-cert" in err
        assert not path.exists()


# Risk: what was kept is not found again by the next process, or a file that cannot be written is found at the end only.
def test_the_cache_outlives_the_server(binary, tiny, refused, tmp_path):
    kept = tmp_path / "kept"
    body = json.dumps({"prompt": list(range(1, 201)), "max_tokens": 4, "temperature": 0, "ignore_eos": True})
    json_type = {"content-type": "application/json"}

    def cached(server):
        status, data = server.ask("POST", "/v1/completions", body, json_type)
        assert status == 200, data
        answer = json.loads(data)
        return answer["usage"].get("prompt_tokens_details", {}).get("cached_tokens", 0), answer["choices"][0]["text"]

    with Serve(binary, tiny, "--cache-file", kept) as server:
        none, text = cached(server)
        assert none == 0
        code, err = server.end()
        assert code == 0 and f"{kept}: wrote" in err
    assert kept.stat().st_mode & 0o777 == 0o600
    assert list(tmp_path.iterdir()) == [kept]
    with Serve(binary, tiny, "--cache-file", kept) as server:
        some, again = cached(server)
        assert some >= 128 and again == text
        assert server.end()[0] == 0
    kept.write_bytes(kept.read_bytes()[:-100])
    with Serve(binary, tiny, "--cache-file", kept, ready=False) as server:
        assert server.process.wait(60) == 3
        assert "damaged" in server.process.stderr.read()
    assert "no/kept" in refused(3, "serve", tiny, "--port", 0, "--cache-file", tmp_path / "no" / "kept")
