"""Risk: a call of the system that fails, once and anywhere, ends in a crash, in silence, in two errors, in half a file, or
in an answer that is not the right one.

Each scenario runs once to count its calls, then again for every one of them, which fails. faults.cpp says which kinds there
are. What may come of it: the very output of the undisturbed run (the call did not matter), or exit code 2 to 5 with one
error on stderr and no file that is not whole (but what `pull` goes on with, NAME.part); and nothing is held at the end that the undisturbed run does not hold.
"""

import http.client
import json
import os
import re
import shutil
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor

import pytest

RUN_S = 120
# Calls that must not matter at all: a short read is not the end, a short write goes on.
HARMLESS = {"short-read", "short-write"}


def run_to_end(process):
    """(stdout, stderr)"""
    return process.communicate(timeout=RUN_S)


class Outcome:
    """What one run did: its code, streams, files, and the report of faults.cpp."""

    def __init__(self, faulty, arguments, folder, fault="", drive=run_to_end, stdin=subprocess.DEVNULL):
        folder.mkdir()
        report = folder.with_suffix(".report")
        environment = {**os.environ, "FAULT": fault, "FAULT_REPORT": str(report)}
        with subprocess.Popen([str(faulty), *map(str, arguments)], cwd=folder, env=environment, stdin=stdin,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                self.out, err = drive(process)
            finally:
                if process.poll() is None:
                    process.kill()
        self.code, self.err = process.returncode, err.decode(errors="replace")
        self.files = {path.name: path.read_bytes() for path in folder.iterdir()}
        lines = report.read_text().splitlines() if report.exists() else []
        self.calls = {kind: int(count) for kind, _, count in (line.partition(" ") for line in lines) if kind != "leak"}
        self.leaks = [line for line in lines if line.startswith("leak")]
        self.reported = report.exists()
        shutil.rmtree(folder)
        report.unlink(missing_ok=True)

    def trouble(self, plain, kind):
        """What is wrong with this run, beside the undisturbed one; empty: nothing."""
        errors = [line for line in self.err.splitlines() if "error:" in line]
        if self.code == plain.code:
            if self.out != plain.out or self.files != plain.files:
                return f"exit code {self.code}, and another output"
            if errors:
                return f"exit code {self.code}, and an error: {errors}"
        else:
            if kind in HARMLESS:
                return f"exit code {self.code}: {errors}"
            if not 2 <= self.code <= 5:
                return f"exit code {self.code}: {self.err[-500:]}"
            if len(errors) != 1 or not errors[0].startswith("sparkinfer: error: "):
                return f"{len(errors)} errors: {self.err[-500:]}"
            if any(plain.files.get(name) != data for name, data in self.files.items() if not name.endswith(".part")):
                return f"files are left: {[*self.files]}"
        if not self.reported:
            return "it did not come to its end"
        if len(self.leaks) > len(plain.leaks):
            return f"held at the end: {self.leaks}"
        return ""


SCENARIOS = {
    "inspect": ["inspect", "{models}/tiny.gguf"],
    "inspect a folder": ["inspect", "{models}/folder", "--json"],
    "tokenize": ["tokenize", "{models}/tiny.gguf", "-p", "Hello world", "--json"],
    "explain": ["explain", "{models}/tiny.gguf"],
    "run": ["run", "{models}/tiny.gguf", "--temp", 0, "-n", 3, "-p", "Hello", "-t", 2, "--seed", 1],
    "run a folder": ["run", "{models}/folder", "--temp", 0, "-n", 2, "-p", "Hello", "-t", 1, "--seed", 1],
    "logits": ["perplexity", "{models}/tiny.gguf", "--tokens", "{models}/ids.npy", "--logits-out", "logits.npy", "-t", 1],
    "quantize": ["quantize", "{models}/tiny.gguf", "small.gguf", "Q8_0", "-t", 2],
    "quantize with an imatrix": ["quantize", "{models}/tiny.gguf", "small.gguf", "Q4_K_M", "-t", 1, "--imatrix",
                                 "{models}/imatrix.dat"],
    "kl-divergence": ["perplexity", "{models}/tiny.gguf", "-t", 1, "--kl-base", "{models}/base.kld"],
    "inspect strictly": ["inspect", "{models}/tiny.gguf", "--strict"],
    "pull": ["pull", "small", "--manifest", "{models}/manifest.json", "--from", "{models}", "--to", "."],
    "convert": ["convert", "{models}/folder", "whole.gguf"],
    "kl-base": ["perplexity", "{models}/tiny.gguf", "-f", "{models}/text.txt", "--ctx", 16, "-t", 1, "--save-kl-base", "base.kld"],
    "chat": ["chat", "{models}/tiny.gguf", "--temp", 0, "-n", 2, "--no-history", "-t", 1],
    "perplexity": ["perplexity", "{models}/tiny.gguf", "-f", "{models}/text.txt", "--ctx", 16, "-t", 1],
}


@pytest.mark.parametrize("name", SCENARIOS)
def test_every_call_may_fail_once(faulty, models, tmp_path, name):
    arguments = [str(a).format(models=models) for a in SCENARIOS[name]]

    def run(folder, fault=""):
        with (models / "talk.txt").open("rb") as talk:
            return Outcome(faulty, arguments, tmp_path / folder, fault, stdin=talk)

    plain = run("plain")
    assert plain.code in (0, 1 if "--strict" in arguments else 0) and (plain.out or plain.files), plain.err
    assert not plain.leaks
    assert all(plain.calls[kind] > 0 for kind in ("open", "map", "stat")), plain.calls

    check_all(plain, lambda kind, n: run(f"{kind}-{n}", f"{kind}:{n}").trouble(plain, kind))


def check_all(plain, trouble):
    """Lets every call of the undisturbed run fail, as many at a time as there are cores."""
    faults = [(kind, n + 1) for kind, count in plain.calls.items() for n in range(count)]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        troubles = list(pool.map(lambda fault: trouble(*fault), faults))
    found = [f"{kind} {n}: {what}" for (kind, n), what in zip(faults, troubles) if what]
    assert not found, f"{len(found)} of {len(faults)}\n" + "\n".join(found)


# ---- A server -------------------------------------------------------------------------------------------------------

BODY = json.dumps({"messages": [{"role": "user", "content": "The log of a ship. " * 30}], "max_tokens": 2, "temperature": 0,
                   "ignore_eos": True})


def ask_once(process):
    """One question to a server that has begun, then SIGTERM. Its stdout is the answer: status and text."""
    said = b""
    while not said.endswith(b"\n") or b"\ntry: " not in said:
        line = process.stdout.readline()
        if not line:
            return run_to_end(process)
        said += line
    port = int(re.search(rb"http://127\.0\.0\.1:(\d+) ", said).group(1))
    try:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=RUN_S)
        connection.request("POST", "/v1/chat/completions", BODY, {"content-type": "application/json"})
        answer = connection.getresponse()
        data = answer.read()
        text = json.loads(data)["choices"][0]["message"]["content"] if answer.status == 200 else ""
        asked = f"{answer.status} {text}".encode()
        connection.close()
    except OSError:  # it has ended
        asked = b"no answer"
    process.send_signal(signal.SIGTERM)
    return asked, run_to_end(process)[1]


def server_trouble(outcome, plain, kind):
    """A request may be what fails: then it alone is told so, and the server goes on."""
    errors = [line for line in outcome.err.splitlines() if "error:" in line]
    if outcome.code == 0 and outcome.out != plain.out and kind not in HARMLESS:
        status = outcome.out.decode().split()[0]
        if status not in ("500", "503") or len(errors) > 1:
            return f"answered {outcome.out}: {errors}"
        return f"files {[*outcome.files]}" if len(outcome.files) > 1 else ""
    return outcome.trouble(plain, kind)


def test_every_call_of_a_server_may_fail_once(faulty, models, tmp_path):
    arguments = ["serve", models / "tiny.gguf", "--port", 0, "--slots", 2, "-t", 1, "--ctx", 512, "--cache-file", "kept"]

    def run(kind, n):
        return Outcome(faulty, arguments, tmp_path / f"{kind}-{n}", f"{kind}:{n}", ask_once)

    plain = run("none", 0)
    assert plain.code == 0 and plain.out.startswith(b"200 ") and [*plain.files] == ["kept"], plain.err
    check_all(plain, lambda kind, n: server_trouble(run(kind, n), plain, kind))


# ---- A full disk ----------------------------------------------------------------------------------------------------


FULL = {
    "logits": ["perplexity", "{models}/tiny.gguf", "--tokens", "{models}/many.npy", "--logits-out", "/mnt/logits.npy"],
    "kl-base": ["perplexity", "{models}/tiny.gguf", "-f", "{models}/long.txt", "--ctx", 16, "--save-kl-base", "/mnt/base.kld"],
    "quantize": ["quantize", "{models}/tiny.gguf", "/mnt/small.gguf", "Q8_0"],
    "convert": ["convert", "{models}/folder", "/mnt/whole.gguf"],
    "pull": ["pull", "small", "--manifest", "{models}/manifest.json", "--from", "{models}", "--to", "/mnt"],
}


@pytest.mark.parametrize("name", FULL)
def test_a_full_disk(binary, models, name):
    """A file system of 64 KiB, in a mount namespace of its own."""
    script = """
        mount -t tmpfs -o size=64k none /mnt || exit 99
        "$0" "$@"
        code=$?
        ls -A /mnt
        exit $code"""
    arguments = [str(word).format(models=models) for word in FULL[name]]
    command = ["unshare", "-rm", "sh", "-c", script, str(binary), *arguments]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=RUN_S, check=False)
    errors = [line for line in done.stderr.decode().splitlines() if "error:" in line]
    assert done.returncode == 4, done.stderr
    assert len(errors) == 1 and "/mnt/" in errors[0], errors
    assert "No space left on device" in errors[0] or "are free there" in errors[0], errors
    assert done.stdout == b"", "a file is left"


# Risk: the last event of an answer comes when those whom it concerns are gone already.
def test_an_answer_that_nobody_hears(faulty, models, tmp_path):
    arguments = ["chat", models / "tiny.gguf", "--temp", 0, "-n", 2, "--no-history", "-t", 1]
    with (models / "talk.txt").open("rb") as talk:
        plain = Outcome(faulty, arguments, tmp_path / "plain", stdin=talk)

    def run(n):
        with (models / "talk.txt").open("rb") as talk:
            return Outcome(faulty, arguments, tmp_path / f"{n}", "write:4", stdin=talk).trouble(plain, "write")

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        assert {*pool.map(run, range(24))} == {""}
