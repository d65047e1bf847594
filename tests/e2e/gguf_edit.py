"""Changes single facts of a GGUF file, for tests that need a file which is right but for one thing.

Only the header is understood: metadata keys and tensor entries are kept as byte strings, so that any of them can be dropped,
doubled or replaced; the tensors' data is carried over as it is.
"""

import struct

STRING, ARRAY = 8, 9
_WIDTH = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
ALIGNMENT = 32


class _Reader:
    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, form):
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def text(self):
        length = self.number("Q")
        self.at += length
        return self.data[self.at - length : self.at].decode()

    def skip_value(self, kind):
        if kind == STRING:
            self.text()
        elif kind == ARRAY:
            inner, count = self.number("I"), self.number("Q")
            for _ in range(count):
                self.skip_value(inner)
        else:
            self.at += _WIDTH[kind]


def string(text):
    raw = text if isinstance(text, bytes) else text.encode()
    return struct.pack("<Q", len(raw)) + raw


def string_value(text):
    """A metadata value: its type and its bytes."""
    return struct.pack("<I", STRING) + string(text)


def float_value(number):
    return struct.pack("<If", 6, number)


class Gguf:
    """keys: [(name, value with its type)]; tensors: [(name, rest of the entry)]; data: all that follows."""

    def __init__(self, path):
        data = path.read_bytes()
        reader = _Reader(data)
        assert reader.number("I") == 0x46554747
        self.version = reader.number("I")
        tensors, keys = reader.number("Q"), reader.number("Q")
        self.keys, self.tensors = [], []
        for _ in range(keys):
            name, start = reader.text(), reader.at
            reader.skip_value(reader.number("I"))
            self.keys.append((name, data[start : reader.at]))
        for _ in range(tensors):
            name, start = reader.text(), reader.at
            dimensions = reader.number("I")
            reader.at += 8 * dimensions + 4 + 8
            self.tensors.append((name, data[start : reader.at]))
        self.data = data[-(-reader.at // ALIGNMENT) * ALIGNMENT :]

    def set(self, name, value):
        """Replaces or adds a key; value None removes it."""
        self.keys = [(key, old) for key, old in self.keys if key != name]
        if value is not None:
            self.keys.append((name, value))
        return self

    def write(self, path):
        header = struct.pack("<IIQQ", 0x46554747, self.version, len(self.tensors), len(self.keys))
        for name, rest in self.keys + self.tensors:
            header += string(name) + rest
        path.write_bytes(header + bytes(-len(header) % ALIGNMENT) + self.data)
        return path
