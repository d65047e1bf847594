"""A small HTTP/1.1 client over asyncio that can also misbehave: bytes as they are, early ends, slow reads."""

import asyncio
import json
import time


class Answer:
    def __init__(self, status, headers, body=b""):
        self.status, self.headers, self.body = status, headers, body

    def json(self):
        return json.loads(self.body)


def encode(method, path, body=None, headers=()):
    """The bytes of a request."""
    data = b"" if body is None else body if isinstance(body, bytes) else json.dumps(body).encode()
    head = {"host": "127.0.0.1", **dict(headers)}
    if body is not None:
        head = {"content-type": "application/json", "content-length": str(len(data)), **head}
    lines = [f"{method} {path} HTTP/1.1", *(f"{name}: {value}" for name, value in head.items())]
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + data


class Connection:
    def __init__(self, reader, writer):
        self.reader, self.writer = reader, writer

    @classmethod
    async def open(cls, port, timeout=30):
        return cls(*await asyncio.wait_for(asyncio.open_connection("127.0.0.1", port, limit=1 << 22), timeout))

    async def send(self, data):
        self.writer.write(data)
        await self.writer.drain()

    async def head(self, timeout=120):
        """Status and headers of the next answer; its body is not read. Skips interim answers."""
        while True:
            text = await asyncio.wait_for(self.reader.readuntil(b"\r\n\r\n"), timeout)
            first, *lines = text.decode("latin-1").split("\r\n")[:-2]
            status = int(first.split(" ")[1])
            headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
            if status >= 200:
                return Answer(status, headers)

    async def pieces(self, answer, timeout=120):
        """The body of `answer` as it comes."""
        if "content-length" in answer.headers:
            left = int(answer.headers["content-length"])
            while left:
                data = await asyncio.wait_for(self.reader.read(min(left, 65536)), timeout)
                if not data:
                    raise ConnectionError("the answer ends in the middle")
                left -= len(data)
                yield data
        elif answer.headers.get("transfer-encoding") == "chunked":
            while True:
                size = int((await asyncio.wait_for(self.reader.readline(), timeout)).split(b";")[0] or b"0", 16)
                data = await asyncio.wait_for(self.reader.readexactly(size + 2), timeout)
                if size == 0:
                    return
                yield data[:-2]
        else:
            while data := await asyncio.wait_for(self.reader.read(65536), timeout):
                yield data

    async def read(self, timeout=120):
        answer = await self.head(timeout)
        answer.body = b"".join([data async for data in self.pieces(answer, timeout)])
        return answer

    async def at_end(self, timeout):
        """Whether the other side has ended the connection within `timeout`, whatever it sends before."""
        try:
            async with asyncio.timeout(timeout):
                while await self.reader.read(65536):
                    pass
            return True
        except TimeoutError:
            return False
        except ConnectionError:
            return True

    def close(self):
        self.writer.close()

    def abort(self):
        self.writer.transport.abort()


async def request(port, method, path, body=None, headers=(), timeout=300):
    """One request on a connection of its own."""
    connection = await Connection.open(port)
    try:
        await connection.send(encode(method, path, body, {"connection": "close", **dict(headers)}))
        return await connection.read(timeout)
    finally:
        connection.close()


async def raw(port, data, timeout=30):
    """Sends bytes; the answer, or None when the connection ends without one."""
    connection = await Connection.open(port)
    try:
        try:
            await connection.send(data)
        except ConnectionError:
            pass  # refused while it was being sent; there may be an answer all the same
        return await connection.read(timeout)
    except (ConnectionError, asyncio.IncompleteReadError):
        return None
    finally:
        connection.close()


async def stream(port, path, body, headers=(), timeout=300):
    """(answer, [(seconds since sending, event payload text)]) of a server-sent event stream; comments are left out."""
    connection = await Connection.open(port)
    start = time.monotonic()
    try:
        await connection.send(encode("POST", path, body, headers))
        answer = await connection.head(timeout)
        events, text = [], b""
        async for data in connection.pieces(answer, timeout):
            answer.body += data
            text += data
            while b"\n\n" in text:
                block, text = text.split(b"\n\n", 1)
                payload = "\n".join(line[5:].strip() for line in block.decode().split("\n") if line.startswith("data:"))
                if payload:
                    events.append((time.monotonic() - start, payload))
        return answer, events
    finally:
        connection.close()


async def latencies(port, path, count, pause_s=0.01):
    """Sorted seconds of `count` GETs, one after the other, each on a connection of its own."""
    seconds = []
    for _ in range(count):
        start = time.perf_counter()
        answer = await request(port, "GET", path, timeout=30)
        seconds.append(time.perf_counter() - start)
        assert answer.status == 200, f"GET {path}: {answer.status}"
        await asyncio.sleep(pause_s)
    return sorted(seconds)


def quantile(sorted_values, q):
    return sorted_values[min(len(sorted_values) - 1, int(q * len(sorted_values)))]
