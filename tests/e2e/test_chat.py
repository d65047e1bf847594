"""Risk: `chat` at a terminal loses turns, keys, the kept prefix or the terminal itself; through pipes it loses bytes."""

import json
import re
import signal
import subprocess
import sys

import pytest
from terminal import CTRL, DOWN, LEFT, UP, Screen, Terminal

from conftest import ROOT

GREEDY = ["--temp", "0", "--no-history"]
PROMPT = "\x1b[?2004h\r\x1b[J> "  # as it is drawn when a text begins
TOKENS = re.compile(r"(\d+) tokens of its prompt were kept, (\d+) read")


@pytest.fixture(scope="module")
def recurrent(tmp_path_factory):
    """A tiny random qwen35: recurrent states beside attention."""
    path = tmp_path_factory.mktemp("tiny") / "recurrent.gguf"
    command = [sys.executable, str(ROOT / "tools" / "make_tiny_model.py"), "qwen35-r2", "--gguf", str(path)]
    subprocess.run(command, check=True, capture_output=True)
    return path


@pytest.fixture
def chat(binary):
    """Opens a chat on a terminal and waits for its first prompt."""
    opened = []

    def start(model, *arguments, columns=80, rows=24, env=None):
        terminal = Terminal([binary, "chat", model, *arguments], columns, rows, env)
        opened.append(terminal)
        terminal.expect("\x1b[?2004h")
        terminal.settle(0.1)
        terminal.seen = len(terminal.text)
        return terminal

    yield start
    for terminal in opened:
        terminal.__exit__()


def say(terminal, message, timeout=120):
    """Sends a message; returns what is written up to the next prompt."""
    terminal.send(message + "\r")
    terminal.expect(message)
    terminal.expect("\x1b[?2004l")
    return terminal.expect(PROMPT, timeout)


def test_turns_know_of_each_other_and_are_not_read_again(chat, smollm2):
    terminal = chat(smollm2, *GREEDY, "-n", "30")
    say(terminal, "My name is Marie. Say hello to me.")
    assert "Marie" in say(terminal, "What is my name?")
    say(terminal, "What is the capital of France?")
    kept, read = map(int, TOKENS.search(say(terminal, "/tokens")).groups())
    assert kept > 100 and read < 20, "the third turn reads its own message alone"
    terminal.send(CTRL["D"])
    assert terminal.end() == 0
    assert terminal.restored()


def test_recurrent_states_are_kept_too(chat, recurrent):
    terminal = chat(recurrent, *GREEDY, "-n", "16", "--ctx", "1024")
    for message in ("one two three four five six seven", "eight nine ten", "eleven twelve"):
        say(terminal, message)
    kept, read = map(int, TOKENS.search(say(terminal, "/tokens")).groups())
    assert kept > read, (kept, read)
    before = kept + read
    say(terminal, "/regen")
    kept, read = map(int, TOKENS.search(say(terminal, "/tokens")).groups())
    assert kept + read == before, "the same prompt again"
    assert read < 40, "from a state behind the turn before"


def stop_a_story(terminal):
    """Ctrl-C in an answer, and a question after it."""
    terminal.send("Write a long story about a lighthouse.\r")
    terminal.expect("lighthouse.")
    terminal.expect("the", 120)
    terminal.send(CTRL["C"])
    terminal.expect("stopped")
    terminal.expect(PROMPT)
    assert "4" in say(terminal, "What is 2 + 2?")


def test_an_answer_is_stopped_by_ctrl_c_and_the_chat_goes_on(chat, smollm2):
    terminal = chat(smollm2, *GREEDY)
    stop_a_story(terminal)
    terminal.send(CTRL["C"])
    terminal.expect("Ctrl-C again or Ctrl-D quits")
    terminal.send(CTRL["C"])
    assert terminal.end() == 130
    assert terminal.restored()


def test_a_second_ctrl_c_quits(chat, smollm2):
    terminal = chat(smollm2, *GREEDY)
    terminal.send("Write a long story about a lighthouse.\r")
    terminal.expect("lighthouse.")
    terminal.expect("the", 120)
    terminal.send(CTRL["C"])
    terminal.expect("stopped")
    terminal.expect(PROMPT)
    terminal.send(CTRL["C"])
    assert terminal.end() == 130
    assert terminal.restored()


@pytest.mark.parametrize("when", ["at the prompt", "in an answer"])
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_signals_leave_the_terminal_as_it_was(chat, tiny, when, number):
    terminal = chat(tiny, *GREEDY, "--ctx", "1024")
    if when == "in an answer":
        terminal.send("x\r")
        terminal.settle(0.05)
    terminal.signal(number)
    if when == "in an answer" and number != signal.SIGHUP:
        terminal.signal(number)  # the first one stops the answer
    code = terminal.end()
    assert code == (-signal.SIGHUP if number == signal.SIGHUP else 130)
    assert terminal.restored()


def test_commands(chat, smollm2, tmp_path):
    terminal = chat(smollm2, *GREEDY, "-n", "12")
    assert "/regen" in say(terminal, "/help")
    assert "did you mean /tokens" in say(terminal, "/token")
    assert "knows no thinking" in say(terminal, "/think on")
    assert "there is no answer yet" in say(terminal, "/regen")
    say(terminal, "/system Always answer with the single word Banana.")
    assert "Banana" in say(terminal, "/system")
    first = say(terminal, "What is the capital of France?")
    assert first == say(terminal, "/regen"), "greedy says the same again"
    say(terminal, "/set temp 1.5")
    assert re.search(r"temp +1.5", say(terminal, "/set"))
    assert "expected a number of at least 0 and at most 2" in say(terminal, "/set temp 9")
    assert "there is no setting 'heat'" in say(terminal, "/set heat 9")
    path = tmp_path / "with a space" / "talk.json"
    assert "No such file or directory" in say(terminal, f"/save {path}")
    path.parent.mkdir()
    assert "1 exchange saved" in say(terminal, f"/save {path}")
    saved = json.loads(path.read_text())
    assert [m["role"] for m in saved["messages"]] == ["system", "user", "assistant"]
    assert saved["messages"][2]["content"].strip() in first.replace("\r\n", "\n")
    assert "1 exchange dropped, 0 left" in say(terminal, "/undo")
    assert "the conversation is empty" in say(terminal, "/undo")
    assert "1 exchange loaded" in say(terminal, f"/load {path}")
    assert re.search(r"context: \d\d of 8192 tokens", say(terminal, "/tokens"))
    terminal.send("/quit\r")
    assert terminal.end() == 0


def test_a_full_context_says_so_and_what_can_be_done(chat, tiny):
    terminal = chat(tiny, *GREEDY, "--ctx", "192", "-n", "8")
    for _ in range(40):
        answer = say(terminal, "one two three")
        if "is full" in answer:
            break
    assert "the context of 192 tokens is full" in answer
    assert "/forget" in answer and "--ctx N" in answer
    assert "dropped" in say(terminal, "/forget")
    assert int(re.search(r"context: (\d+) of 192", say(terminal, "/tokens"))[1]) <= 96
    assert "is full" not in say(terminal, "one two three")


def test_editing_keys(chat, tiny, tmp_path):
    terminal = chat(tiny, *GREEDY, "-n", "1")
    # Typed with mistakes, put right with the keys of every shell, saved to be read back.
    terminal.send(b"wrld" + LEFT * 3 + b"o" + CTRL["A"] + b"hello " + CTRL["E"] + b"!!" + b"\x7f" + b"\r")
    terminal.expect(PROMPT, 60)
    terminal.send(b"one two" + CTRL["W"] + b"three" + CTRL["A"] + CTRL["K"] + CTRL["Y"] + CTRL["Y"] + b"\r")
    terminal.expect(PROMPT, 60)
    terminal.send(UP * 2 + DOWN + UP + b" again\r")
    terminal.expect(PROMPT, 60)
    terminal.send("first\x1b\rsecond \\\rthird\r")
    terminal.expect(PROMPT, 60)
    terminal.send(b"\x1b[200~pasted\r\nlines\x1b[201~ typed\r")
    terminal.expect(PROMPT, 60)
    terminal.send("日本語é".encode() + LEFT + b"\x7f" + b"\r")
    terminal.expect(PROMPT, 60)
    terminal.send(CTRL["R"] + b"hello" + CTRL["R"] + b"\r")
    terminal.expect(PROMPT, 60)
    path = tmp_path / "keys.json"
    say(terminal, f"/save {path}")
    messages = [m["content"] for m in json.loads(path.read_text())["messages"] if m["role"] == "user"]
    assert messages == [
        "hello world!", "one threeone three", "hello world! again", "first\nsecond \nthird",
        "pasted\nlines typed", "日本é", "hello world!",
    ]


def test_tab_completes_commands_and_files(chat, tiny, tmp_path):
    (tmp_path / "some talk.json").write_text('{"messages": []}')
    terminal = chat(tiny, *GREEDY)
    terminal.send("/tok\t\r")
    terminal.expect("context: 0 of")
    terminal.send(f"/load {tmp_path}/some\t\r")
    terminal.expect("0 exchanges loaded")
    terminal.send("/s\t")
    terminal.expect("/system   /save   /set ")


@pytest.mark.parametrize("columns", [1, 2, 7, 80, 500])
def test_any_width(chat, tiny, columns):
    terminal = chat(tiny, *GREEDY, "-n", "1", columns=columns, rows=600)
    terminal.settle()
    start = len(terminal.text)
    text = "the quick brown fox jumps over the lazy dog " * 3
    terminal.send(text.encode() + LEFT * 60 + "ö".encode())
    terminal.settle()
    screen = terminal.screen(columns, 600)
    shown = "".join("".join(line) for line in screen.lines)
    typed = text[: len(text) - 60] + "ö" + text[-60:]
    assert typed.replace(" ", "") in shown.replace(" ", ""), shown
    assert all(len(line) <= columns for line in screen.lines)
    assert len(terminal.text) > start
    terminal.send(CTRL["C"])
    terminal.settle()


@pytest.mark.parametrize("columns", [1, 9, 30, 500])
def test_lines_of_answers_end_between_words(chat, smollm2, tmp_path, columns):
    terminal = chat(smollm2, *GREEDY, "-n", "48", columns=columns, rows=2000)
    terminal.send("Describe the sea.\r")
    terminal.expect("\x1b[?2004l", 60)
    terminal.expect("\x1b[?2004h\r\x1b[J>", 120)
    lines = terminal.screen(columns, 2000).text()
    terminal.send(f"/save {tmp_path}/talk.json\r")
    terminal.expect("\x1b[?2004l", 60)
    terminal.expect("\x1b[?2004h\r\x1b[J>", 60)
    said = json.loads((tmp_path / "talk.json").read_text())["messages"][1]["content"]
    assert len(said.split()) > 25 and all(len(line) <= columns for line in lines)
    assert "".join(said.split()) in "".join("".join(lines).split()), "nothing is lost"
    shown = " ".join(lines).split()
    assert all(word in shown for word in said.split() if len(word) <= columns), "no word is broken"
    if columns == 30:
        assert " ".join(said.split()) in " ".join(shown)
        assert sum(len(line) > 20 for line in lines) > 3, "lines are used"


def test_lines_of_help_end_between_words(chat, tiny):
    terminal = chat(tiny, *GREEDY, columns=30, rows=200)
    say(terminal, "/help")
    lines = terminal.screen(30, 200).text()
    help_text = " ".join(" ".join(lines).split())
    assert "Alt-Enter, a \\ before Enter or an open \"\"\" begin a new line." in help_text
    assert all(len(line) <= 30 for line in lines)


def test_lines_follow_the_width_of_the_terminal(chat, smollm2):
    terminal = chat(smollm2, *GREEDY, columns=70)
    terminal.send("Write a long story about a lighthouse.\r")
    terminal.expect("lighthouse.")
    terminal.expect(" the", 120)
    terminal.resize(24, 24)
    seen = len(terminal.bytes)
    while terminal.text[seen:].count("\n") < 12:
        assert terminal.read(60)
    terminal.send(CTRL["C"])
    terminal.expect(PROMPT)
    lines = re.sub(r"\r\x1b\[\d+C\x1b\[J", "<", terminal.text[seen:]).replace("\r", "").split("\n")[2:11]
    assert all(len(re.sub(r"\w+<", "", line)) <= 24 for line in lines), lines


def test_a_pipe_and_a_dumb_terminal_get_the_text_as_it_is(binary, execute, tiny, smollm2):
    command = ["chat", smollm2, *GREEDY, "-n", "48"]
    piped = execute(*command, stdin=b"Describe the sea.\n")[1]
    assert b"\x1b" not in piped and max(map(len, piped.splitlines())) > 80
    with Terminal([binary, *command], env={"TERM": "dumb"}) as terminal:
        terminal.send("Describe the sea.\n\x04")
        assert terminal.end(120) == 0
        assert piped.decode().strip() in terminal.text.replace("\r", "")


def test_make_chat_goes_on_after_ctrl_c(binary, smollm2, tmp_path):
    """Ctrl-C reaches every program of the terminal's job, of which make would be one."""
    (tmp_path / "build" / "release").mkdir(parents=True)
    (tmp_path / "build" / "release" / "sparkinfer").symlink_to(binary)
    command = ["make", "-f", ROOT / "Makefile", "-o", "build", "-o", "model", "chat-cpu", f"MODEL={smollm2}", "CHAT=--no-history --temp 0"]
    with Terminal(command, cwd=tmp_path) as terminal:
        terminal.expect(PROMPT)
        stop_a_story(terminal)
        terminal.send(CTRL["D"])
        assert terminal.end() == 0, terminal.text[-300:]
    done = subprocess.run([*map(str, command)], cwd=tmp_path, input="x\n", capture_output=True, text=True)
    assert done.returncode == 0 and done.stdout and "job control" not in done.stderr, "without a terminal too"


def test_a_text_higher_than_the_screen(chat, tiny):
    terminal = chat(tiny, *GREEDY, "-n", "1", columns=20, rows=5)
    terminal.send(b"\x1b[200~" + b"\n".join(b"line %d" % i for i in range(30)) + b"\x1b[201~")
    terminal.settle()
    assert terminal.screen(20, 5).text()[-1] == "line 29"
    terminal.send(UP * 29 + b"top ")
    terminal.settle()
    assert any(line.startswith("> top line 0") or line == "> line 0top" for line in terminal.screen(20, 5).text()[-5:])
    terminal.send(CTRL["C"])


def test_history_is_kept_in_the_state_folder(chat, tiny, tmp_path):
    env = {"XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    terminal = chat(tiny, "--temp", "0", "-n", "1", env=env)
    say(terminal, "remember me")
    terminal.send(CTRL["D"])
    assert terminal.end() == 0
    file = tmp_path / "state" / "sparkinfer" / "chat_history"
    assert file.read_text() == "remember me\n"
    assert file.stat().st_mode & 0o777 == 0o600
    terminal = chat(tiny, "--temp", "0", "-n", "1", env=env)
    terminal.send(UP)
    terminal.expect("remember me")


def test_a_home_that_cannot_be_written_costs_the_history_alone(chat, tiny, tmp_path):
    home = tmp_path / "home"
    home.write_text("a file, so that nothing can be made below it, whoever asks")
    terminal = chat(tiny, "--temp", "0", "-n", "1", env={"HOME": str(home), "XDG_STATE_HOME": ""})
    assert "the history of this chat is not kept" in say(terminal, "hello")
    say(terminal, "again")
    terminal.send(CTRL["D"])
    assert terminal.end() == 0


def test_colours_unless_no_color(chat, tiny):
    coloured = chat(tiny, *GREEDY, "-n", "1", env={"NO_COLOR": ""})
    coloured.send("/tokens\r")
    coloured.expect("\x1b[2mcontext: 0 of")
    assert "\x1b[1m> \x1b[0m" in coloured.text
    plain = chat(tiny, *GREEDY, "-n", "1", env={"NO_COLOR": "1"})
    say(plain, "/tokens")
    assert not re.search(r"\x1b\[[0-9;]*m", plain.text)


def test_answers_go_where_stdout_goes(binary, tiny, tmp_path):
    """Keys from a terminal, answers into a file: no editing, no sequences in the file."""
    with open(tmp_path / "answers", "wb") as file:
        with Terminal([binary, "chat", tiny, *GREEDY, "-n", "4"], stdout=file) as terminal:
            terminal.expect("> ")
            terminal.send("hello\n")
            terminal.expect("max_tokens")
            terminal.send("\x04")
            assert terminal.end() == 0
    answer = (tmp_path / "answers").read_bytes()
    assert answer and b"\x1b" not in answer and b"> " not in answer


def test_locale_c_and_a_dumb_terminal(binary, tiny):
    with Terminal([binary, "chat", tiny, *GREEDY, "-n", "1"], env={"TERM": "dumb", "LC_ALL": "C"}) as terminal:
        terminal.expect("> ")
        terminal.send("größe\n")
        terminal.expect("größe")
        terminal.expect("> ")
        terminal.settle()
        assert "\x1b" not in terminal.text
        terminal.send(b"\x04")
        assert terminal.end() == 0


def test_lines_of_a_pipe_are_turns(execute, smollm2):
    lines = b"My name is Marie. Say hello to me.\n/tokens\nWhat is my name?\n"
    code, out, err = execute("chat", smollm2, *GREEDY, "-n", "30", stdin=lines)
    assert code == 0, err
    assert "Marie" in out.decode()
    assert b"\x1b" not in out and b"context: " in err


def test_what_is_wrong_in_a_pipe_ends_it(execute, tiny, tmp_path):
    def ends(stdin, *arguments):
        code, out, err = execute("chat", tiny, *GREEDY, "-n", "1", *arguments, stdin=stdin)
        return code, err.decode()

    assert ends(b"/nonsense\n")[0] == 2
    code, err = ends(b"fine\nnot \xff\n")
    assert code == 3 and "byte 0xff at offset 4" in err
    code, err = ends(b"one two three\n" * 40, "--ctx", "128")
    assert code == 4 and "the context of 128 tokens is full" in err
    assert ends(b"", "--load", tmp_path / "none.json")[0] == 3
    (tmp_path / "bad.json").write_text('{"messages": [{"role": "user", "content": "x"}]}')
    code, err = ends(b"", "--load", tmp_path / "bad.json")
    assert code == 3 and "the last message has no answer" in err


def test_save_replaces_conversations_alone(execute, tiny, tmp_path):
    model, talk = tmp_path / "m.gguf", tmp_path / "talk.json"
    model.write_bytes(tiny.read_bytes())
    for path, code in ((talk, 0), (talk, 0), (model, 3)):
        assert execute("chat", model, *GREEDY, stdin=f"/save {path}\n".encode())[0] == code
    assert model.read_bytes() == tiny.read_bytes()


def test_more_than_64_mib_are_refused(execute, tiny):
    code, _, err = execute("chat", tiny, *GREEDY, "-n", "1", stdin=b"/tokens\n" * ((64 << 20) // 8 + 1))
    assert code == 3 and b"more than 67108864 bytes" in err


def test_a_reader_that_goes_away_ends_it(binary, tiny):
    process = subprocess.Popen(
        [binary, "chat", tiny, *GREEDY], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    process.stdout.close()
    process.stdin.write(b"x\ny\nz\n")
    process.stdin.close()
    assert process.wait(60) == 0
    assert b"error" not in process.stderr.read()
