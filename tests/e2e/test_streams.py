"""Risk: a stream, a terminal, a locale, a path or a home that is not as usual loses text, hangs, or leaves a mess."""

import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest
from gguf_edit import Gguf, string_value
from terminal import CTRL, Terminal

from tiny_model import VARIANTS, write_hf

GREEDY = ["--temp", "0", "-t", "1"]  # one thread takes seconds for LONG wherever this runs
LONG = "The quick brown fox jumps over the lazy dog. " * 120
PROMPT = "\x1b[?2004h\r\x1b[J> "  # of a chat, as it is drawn when a text begins


@pytest.mark.parametrize("command", [["run"], ["tokenize"]])
def test_stdin_beyond_64_mib_is_refused(refused, tiny, command):
    assert "more than 67108864 bytes" in refused(3, *command, tiny, stdin=b"a" * ((64 << 20) + 1))


def test_a_long_prompt_has_a_bar_on_a_terminal_alone(binary, smollm2, tmp_path):
    (tmp_path / "long.txt").write_text(LONG)
    command = [binary, "run", smollm2, "--raw", "-f", tmp_path / "long.txt", "-n", "1", *GREEDY]
    with Terminal(command, columns=120) as terminal:
        terminal.expect("sparkinfer: reading [", 60)
        terminal.expect(" of 1201 tokens", 60)
        assert terminal.end(240) == 0
        last = terminal.screen(120).text()
        assert not any("reading" in line for line in last), "the bar is taken away"
    done = subprocess.run(command, capture_output=True, check=True)
    assert b"reading" not in done.stderr and b"\r" not in done.stderr


@pytest.mark.parametrize("columns", [1, 500])
def test_bars_fit_any_terminal(binary, smollm2, tmp_path, columns):
    (tmp_path / "long.txt").write_text(LONG)
    command = [binary, "run", smollm2, "--raw", "-f", tmp_path / "long.txt", "-n", "1", *GREEDY]
    with Terminal(command, columns=columns) as terminal:
        assert terminal.end(240) == 0
        bars = [line for line in terminal.text.split("\n")[0].split("\r") if "reading" in line]
        assert all(len(bar) < columns for bar in bars)
        assert (columns == 1) != bool(bars)


def test_a_bar_of_a_chat(binary, smollm2):
    with Terminal([binary, "chat", smollm2, "--no-history", "-n", "1", *GREEDY], columns=100) as terminal:
        terminal.expect(PROMPT)
        terminal.send("\x1b[200~" + LONG + "\x1b[201~\r")
        terminal.expect("sparkinfer: reading [", 60)
        terminal.expect(PROMPT, 120)
        terminal.send("/tokens\r")
        terminal.expect(" tokens of its prompt were kept")
        terminal.send(CTRL["D"])
        assert terminal.end() == 0


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("after", [0.0, 0.05, 0.3, 1.5])
def test_a_signal_at_any_time_ends_a_chat(binary, smollm2, after, number):
    """While it starts, loads, reads a long prompt, answers. SIGINT may have to be said twice."""
    with Terminal([binary, "chat", smollm2, "--no-history", *GREEDY]) as terminal:
        terminal.send(LONG[:3000] + "\r")
        time.sleep(after)
        for _ in range(50):
            if terminal.process.poll() is not None:
                break
            terminal.signal(number)
            terminal.read(0.2)
        assert terminal.end() in (130, -number), "before main() a signal is the system's"
        assert terminal.restored()


def test_locale_c_changes_nothing(execute, tiny):
    outs = [
        execute("run", tiny, "-p", "größe 日本", "-n", "8", *GREEDY, env={"LC_ALL": locale, "LANG": locale})[1]
        for locale in ("C", "C.UTF-8", "de_DE.UTF-8", "nonsense")
    ]
    assert outs[0] and len(set(outs)) == 1


@pytest.mark.parametrize("name", [b"a b.gguf", b"-dash.gguf", b"\xff\xfe.gguf", b"line\nbreak\x1b[2J.gguf", "größe 日.gguf".encode()])
def test_paths_of_any_bytes(binary, tiny, tmp_path, name):
    path = os.path.join(os.fsencode(tmp_path), name)
    shutil.copy(os.fsencode(tiny), path)
    for command in ([b"inspect", path], [b"tokenize", path, b"-p", b"x"], [b"run", path, b"-p", b"x", b"-n", b"1"],
                    [b"chat", path], [b"models", os.fsencode(tmp_path)]):  # fmt: skip
        done = subprocess.run([os.fsencode(binary), *command], stdin=subprocess.DEVNULL, capture_output=True)
        assert done.returncode == 0, (command, done.stderr)
        assert b"\x1b" not in done.stdout + done.stderr, command
    folder, text, out = (os.path.join(os.fsencode(tmp_path), kind + name) for kind in (b"dir ", b"text ", b"out "))
    write_hf(VARIANTS["llama"], os.fsdecode(folder))
    with open(text, "w") as file:
        file.write("one two three four five " * 10)
    for command in ([b"quantize", path, out, b"Q8_0"], [b"convert", folder, out],
                    [b"perplexity", path, b"-f", text, b"--ctx", b"16", b"--logits-out", out]):  # fmt: skip
        done = subprocess.run([os.fsencode(binary), *command], stdin=subprocess.DEVNULL, capture_output=True)
        assert done.returncode == 0 and os.path.getsize(out) > 1000, (command, done.stderr)
        assert b"\x1b" not in done.stdout + done.stderr, command
        os.remove(out)
    missing = subprocess.run([os.fsencode(binary), b"run", path + b"x", b"-p", b"x"], capture_output=True)
    assert missing.returncode == 3 and len(missing.stderr.splitlines()) == 1 and b"\x1b" not in missing.stderr


@pytest.fixture
def ordinary(tiny, binary):
    """An ordinary user: a folder with the program and a model, and what makes subprocess run as somebody."""
    with tempfile.TemporaryDirectory(prefix="sparkinfer-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        for source, copy in [(binary, "sparkinfer"), (tiny, "model.gguf")]:
            shutil.copy(source, folder / copy)
            (folder / copy).chmod(0o755)
        (folder / "home").mkdir(mode=0o555)
        user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
        yield folder, {"cwd": "/", **user}


@pytest.mark.parametrize("home", ["read-only", "missing", "none", "relative"])
def test_homes(ordinary, home):
    folder, user = ordinary
    homes = {"read-only": str(folder / "home"), "missing": str(folder / "nowhere"), "none": None, "relative": "."}
    env = {"PATH": "/usr/bin:/bin", "TERM": "xterm", "NO_COLOR": "1"}
    if homes[home] is not None:
        env["HOME"] = homes[home]

    def run(*arguments):
        command = [folder / "sparkinfer", *arguments]
        return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, env=env, **user)

    assert run("run", folder / "model.gguf", "-p", "x", "-n", "2", *GREEDY).returncode == 0
    assert run("doctor").returncode == 0 and run("models").returncode == 0
    pulled = run("pull", "smollm2-135m", "--from", "/nowhere")
    assert pulled.returncode in (2, 3) and len(pulled.stderr.splitlines()) == 1, pulled.stderr
    command = ["env", "-i", *(f"{key}={value}" for key, value in env.items())]
    command += [folder / "sparkinfer", "chat", folder / "model.gguf", "-n", "1", *GREEDY]
    with Terminal(command, **user) as terminal:
        terminal.expect(PROMPT)
        terminal.send("hello\r")
        terminal.expect("\x1b[?2004l")
        terminal.expect(PROMPT)
        terminal.send(CTRL["D"])
        assert terminal.end() == 0
        assert ("is not kept" in terminal.text) == (home in ("read-only", "missing"))
    assert list((folder / "home").iterdir()) == []


THINKING = (
    "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\\n' }}"
    "{%- if enable_thinking is defined and enable_thinking is false %}{{- '<think>\\n\\n</think>\\n\\n' }}"
    "{%- else %}{{- '<think>\\n' }}{%- endif %}{%- endif %}"
)


def test_thinking(binary, tiny, tmp_path, execute):
    Gguf(tiny).set("tokenizer.chat_template", string_value(THINKING)).write(tmp_path / "thinker.gguf")
    command = [binary, "chat", tmp_path / "thinker.gguf", "--no-history", "-n", "24", "--think", "6", *GREEDY]
    with Terminal(command) as terminal:
        terminal.expect(PROMPT)
        terminal.send("x\r")
        terminal.expect("Thinking…")
        terminal.expect("…thought.")
        terminal.expect(PROMPT)
        terminal.send("/think off\r")
        terminal.expect("thinking: off")
        terminal.expect(PROMPT)
        terminal.send("x\r")
        before = terminal.expect("\x1b[?2004h")
        assert "Thinking" not in before
        terminal.send(CTRL["D"])
        assert terminal.end() == 0
    code, out, _ = execute("chat", tmp_path / "thinker.gguf", "-n", "24", "--think", "6", *GREEDY, stdin=b"x\n")
    assert code == 0 and b"Thinking" not in out and out, "through a pipe the answer alone"
