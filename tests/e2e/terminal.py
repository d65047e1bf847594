"""A pseudo-terminal with the binary in it: keys in, what it writes out, and the screen that this makes."""

import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import termios
import time

CTRL = {letter: bytes([ord(letter) & 0x1F]) for letter in "ABCDEFGHKLNPRUWYZ"}
UP, DOWN, RIGHT, LEFT = b"\x1b[A", b"\x1b[B", b"\x1b[C", b"\x1b[D"
SEQUENCE = re.compile(r"\x1b\[([?0-9;]*)([A-Za-z])")


class Screen:
    """As much of a terminal as the line editor asks for: rows of characters, a cursor, wrapping, scrolling."""

    def __init__(self, columns, rows):
        self.columns, self.rows = columns, rows
        self.lines, self.x, self.y = [[]], 0, 0

    def feed(self, text):
        at = 0
        while at < len(text):
            match = SEQUENCE.match(text, at)
            if match:
                self.obey(match[1], match[2])
                at = match.end()
                continue
            self.put(text[at])
            at += 1

    def obey(self, parameter, letter):
        count = int(parameter) if parameter.isdigit() else 1
        if letter == "A":
            self.y = max(self.y - count, self.top())
        elif letter == "C":
            self.x = min(self.x + count, self.columns - 1)
        elif letter == "J":
            del self.lines[self.y + 1 :]
            del self.lines[self.y][self.x :]
        elif letter in "hlm":
            pass
        else:
            raise AssertionError(f"the screen does not know ESC [ {parameter} {letter}")

    def top(self):
        return max(0, len(self.lines) - self.rows)

    def put(self, character):
        if character == "\r":
            self.x = 0
        elif character == "\n":
            self.next_line()
        else:
            assert character >= " ", f"the screen got {character!r}"
            if self.x == self.columns:
                self.x = 0
                self.next_line()
            line = self.lines[self.y]
            line.extend(" " * (self.x - len(line)))
            line[self.x : self.x + 1] = character
            self.x += 1

    def next_line(self):
        self.y += 1
        if self.y == len(self.lines):
            self.lines.append([])

    def text(self):
        return ["".join(line).rstrip() for line in self.lines]


class Terminal:
    """Starts a command on a terminal of its own. Leaving the `with` block ends it."""

    def __init__(self, command, columns=80, rows=24, env=None, **more):
        self.master, slave = pty.openpty()
        self.resize(columns, rows)
        self.before = termios.tcgetattr(slave)
        self.slave = slave
        environment = {**os.environ, "TERM": "xterm", "NO_COLOR": "1", **(env or {})}
        self.process = subprocess.Popen(
            list(map(str, command)), env=environment, start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
            **{"stdin": slave, "stdout": slave, "stderr": slave, **more},
        )
        self.bytes = b""
        self.seen = 0  # of the text, by expect()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self.slave)
        os.close(self.master)

    def resize(self, columns, rows):
        fcntl.ioctl(self.master, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    @property
    def text(self):
        return self.bytes.decode("utf-8", "replace")

    def read(self, timeout):
        """Takes what there is; False: nothing came."""
        if not select.select([self.master], [], [], timeout)[0]:
            return False
        try:
            self.bytes += os.read(self.master, 65536)
        except OSError:
            return False
        return True

    def expect(self, wanted, timeout=60):
        """Waits for a text behind what earlier calls have found; returns what lies before it."""
        deadline = time.monotonic() + timeout
        while True:
            at = self.text.find(wanted, self.seen)
            if at >= 0:
                before, self.seen = self.text[self.seen : at], at + len(wanted)
                return before
            assert time.monotonic() < deadline, f"no {wanted!r} in {self.text[self.seen :]!r}"
            self.read(0.2)

    def settle(self, quiet=0.3):
        while self.read(quiet):
            pass

    def send(self, keys):
        os.write(self.master, keys.encode() if isinstance(keys, str) else keys)

    def signal(self, number=signal.SIGINT):
        os.kill(self.process.pid, number)

    def end(self, timeout=30):
        """The exit code, once it has ended."""
        deadline = time.monotonic() + timeout
        while self.process.poll() is None:
            assert time.monotonic() < deadline, f"it does not end: {self.text[-500:]!r}"
            self.read(0.1)
        self.settle(0.05)
        return self.process.returncode

    def restored(self):
        """Whether the terminal's modes are those it had before."""
        return termios.tcgetattr(self.slave) == self.before

    def screen(self, columns=80, rows=24):
        screen = Screen(columns, rows)
        screen.feed(self.text)
        return screen
