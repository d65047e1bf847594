"""Risk: `run` does not do what its help says: streams, flags, exit codes, the JSON object, figures, memory, Ctrl-C."""

import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from terminal import Terminal

QUESTION = "What is the capital of France?"
GREEDY = ["--temp", "0"]


@pytest.fixture(scope="module")
def answer(execute, smollm2):
    """A greedy answer as text: exit code, stdout, stderr."""
    return execute("run", smollm2, "-p", QUESTION, "-n", "24", *GREEDY)


@pytest.fixture(scope="module")
def answer_json(execute, smollm2):
    """The same answer as JSON, with log-probabilities."""
    code, out, _ = execute("run", smollm2, "-p", QUESTION, "-n", "24", *GREEDY, "--json", "--logprobs", "3")
    assert code == 0
    return json.loads(out)


def test_the_answer_is_on_stdout_and_right(answer):
    code, out, err = answer
    assert code == 0
    assert "Paris" in out.decode()
    assert b"tok/s" not in out and b"seed" not in out
    assert b"Paris" not in err


def test_the_last_line_has_the_figures(answer):
    last = answer[2].decode().splitlines()[-1]
    number = r"[0-9]+(\.[0-9]+)?"
    pattern = (
        rf"sparkinfer: load {number} s · prompt \d+ tokens, {number} tok/s · "
        rf"generated \d+ tokens, {number} tok/s · peak memory {number} MB"
    )
    assert re.fullmatch(pattern, last), last


def test_json_has_exactly_the_promised_fields(answer, answer_json):
    o = answer_json
    assert list(o) == ["text", "token_ids", "prompt_token_ids", "finish_reason", "logprobs", "timings"]
    assert o["text"] + "\n" == answer[1].decode(), "as text it is a line"
    assert o["finish_reason"] in ("stop", "length")
    timings = o["timings"]
    assert list(timings) == ["load_s", "prompt_n", "prompt_s", "gen_n", "gen_s", "first_token_s", "peak_rss_bytes"]
    assert timings["prompt_n"] == len(o["prompt_token_ids"]) > 0
    assert timings["gen_n"] == len(o["token_ids"]) > 0
    assert 0 < timings["load_s"] <= timings["first_token_s"]
    assert timings["prompt_s"] > 0 and timings["gen_s"] > 0
    assert len(o["logprobs"]) == len(o["token_ids"])
    for entry, token in zip(o["logprobs"], o["token_ids"]):
        assert list(entry) == ["id", "token", "bytes", "logprob", "top"]
        assert entry["id"] == token and entry["logprob"] <= 0
        assert bytes(entry["bytes"]).decode() == entry["token"]
        assert len(entry["top"]) == 3
        assert all(list(t) == ["id", "token", "bytes", "logprob"] for t in entry["top"])
        best = [t["logprob"] for t in entry["top"]]
        assert best == sorted(best, reverse=True)
        assert entry["top"][0]["id"] == token, "greedy takes the likeliest"
        assert abs(entry["top"][0]["logprob"] - entry["logprob"]) < 1e-6
    assert "".join(entry["token"] for entry in o["logprobs"]).startswith(o["text"])


def test_no_logprobs_unless_asked(execute, tiny):
    code, out, _ = execute("run", tiny, "-p", "x", "-n", "2", "--json")
    assert code == 0 and json.loads(out)["logprobs"] == []


def test_the_template_is_applied_unless_raw(execute, smollm2, answer_json):
    def prompt(*arguments):
        code, out, _ = execute("run", smollm2, *arguments, "-n", "1", "--json")
        assert code == 0
        return json.loads(out)["prompt_token_ids"]

    def tokenized(*arguments):
        code, out, _ = execute("tokenize", smollm2, "--json", *arguments)
        assert code == 0
        return json.loads(out)["token_ids"]

    assert prompt("--raw", "-p", QUESTION) == tokenized("-p", QUESTION)
    rendered = answer_json["prompt_token_ids"]
    question = tokenized("-p", QUESTION)
    assert any(rendered[i : i + len(question)] == question for i in range(len(rendered)))
    control = tokenized("-p", "<|im_start|>")
    assert len(control) == 1 and control[0] in rendered
    # In a chat, message text never becomes a control token; with --raw it does.
    assert prompt("-p", "a<|im_end|>b").count(control[0]) == rendered.count(control[0])
    assert prompt("--raw", "-p", "<|im_start|>") == control


def test_prompts_from_argument_file_and_stdin_are_the_same(execute, smollm2, tmp_path):
    text = "Größe: 5 € 😀"
    (tmp_path / "prompt.txt").write_text(text + "\n")  # one newline at the end is the editor's, not the prompt's
    ways = [["-p", text], ["-f", tmp_path / "prompt.txt"], [], ["-f", "/dev/stdin"]]
    outs = [execute("run", smollm2, *way, "-n", "4", *GREEDY, "--raw", "--json", stdin=text.encode()) for way in ways]
    ids = [json.loads(out)["prompt_token_ids"] for _, out, _ in outs]
    assert ids[0] == ids[1] == ids[2] == ids[3]


def test_the_seed_decides_and_is_reported(execute, smollm2):
    def sample(*arguments):
        code, out, err = execute("run", smollm2, "--raw", "-p", "Once", "-n", "12", "--temp", "1.5", *arguments)
        assert code == 0
        return out, re.search(r"seed (\d+)", err.decode())[1]

    first, seed = sample("--seed", "7")
    assert seed == "7"
    assert sample("--seed", "7")[0] == first
    assert sample("--seed", "8")[0] != first
    free, seed = sample()
    assert sample("--seed", seed)[0] == free
    assert b"seed" not in execute("run", smollm2, "-p", "Once", "-n", "2", *GREEDY)[2], "where no number is drawn, none counts"


def test_an_answer_ends_with_a_line(binary, execute, tiny):
    """Risk: what is piped or kept in a file runs into what follows; or a text that ends a line gets an empty one."""
    for arguments in (["-n", "3"], ["-n", "1", "--logit-bias", "199+99"], ["-n", "9", "--raw"]):
        arguments = ["run", tiny, "-p", "x", *GREEDY, *arguments]
        text = json.loads(execute(*arguments, "--json")[1])["text"]
        piped = execute(*arguments)[1].decode()
        assert piped == (text if text.endswith("\n") else text + "\n")
        with Terminal([binary, *arguments]) as terminal:
            assert terminal.end() == 0
            assert terminal.text.replace("\r", "").startswith(piped + "sparkinfer: load ")


def test_greedy_is_the_same_for_any_number_of_threads(execute, smollm2, answer):
    for threads in ["1", "2"]:
        assert execute("run", smollm2, "-p", QUESTION, "-n", "24", *GREEDY, "-t", threads)[1] == answer[1]


def test_the_limit_and_the_context_end_an_answer(execute, smollm2):
    def finished(*arguments):
        code, out, _ = execute("run", smollm2, "--raw", "-p", "1 2 3 4 5 6 7 8", "--json", *GREEDY, *arguments)
        assert code == 0
        o = json.loads(out)
        return len(o["token_ids"]), o["finish_reason"], len(o["prompt_token_ids"])

    assert finished("-n", "3")[:2] == (3, "length")
    generated, reason, prompt = finished("--ctx", "24")
    assert reason == "length" and generated + prompt == 24
    assert finished("-n", "3", "--ctx", "64")[:2] == (3, "length")


def test_an_end_token_ends_and_is_not_reported(execute, smollm2):
    code, out, _ = execute("run", smollm2, "-p", "Say only the word: yes", "--json", *GREEDY, "-n", "200")
    o = json.loads(out)
    code, end, _ = execute("tokenize", smollm2, "--json", "-p", "<|im_end|>")
    assert o["finish_reason"] == "stop"
    assert json.loads(end)["token_ids"][0] not in o["token_ids"]
    assert "<|im_end|>" not in o["text"]


def test_stop_strings_end_before_them(execute, smollm2):
    base = ["run", smollm2, "--raw", "-p", "1, 2, 3, 4, 5, 6,", *GREEDY, "-n", "40"]
    code, whole, _ = execute(*base)
    assert b" 9, 10" in whole
    for stops in [["9"], [", 10", "zzz"], ["never", " 9, 1"]]:
        flags = [x for stop in stops for x in ("--stop", stop)]
        code, out, _ = execute(*base, *flags)
        at = min(i for i in (whole.find(stop.encode()) for stop in stops) if i >= 0)
        assert code == 0 and out == whole[:at] + b"\n"
    o = json.loads(execute(*base, "--stop", "9", "--json")[1])
    assert o["finish_reason"] == "stop" and "9" not in o["text"]


def test_logit_bias_forces_and_forbids(execute, smollm2, answer_json):
    first = answer_json["token_ids"][0]

    def ids(*arguments):
        code, out, _ = execute("run", smollm2, "-p", QUESTION, "-n", "3", *GREEDY, "--json", *arguments)
        assert code == 0
        return json.loads(out)["token_ids"]

    assert ids("--logit-bias", "300+1000") == [300, 300, 300]
    assert ids("--logit-bias", "300=1000", "--logit-bias", "301+2000") == [301, 301, 301]
    assert ids("--logit-bias", f"{first}-1000")[0] != first


def chunks(process):
    """(seconds since the first, bytes) of each read of a process's stdout."""
    found, start = [], None
    while piece := os.read(process.stdout.fileno(), 1 << 16):
        start = start or time.monotonic()
        found.append((time.monotonic() - start, piece))
    process.wait()
    return found


def start(binary, *arguments):
    return subprocess.Popen(
        [str(binary), *map(str, arguments)], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def test_the_answer_streams(binary, smollm2):
    with start(binary, "run", smollm2, "--raw", "-p", "1, 2, 3, 4,", "-n", "160", *GREEDY) as process:
        pieces = chunks(process)
        assert process.returncode == 0
    assert len(pieces) > 10
    half = pieces[len(pieces) // 2][0]
    assert 0.1 < half / pieces[-1][0] < 0.9, "bytes arrive while the rest is still being computed"


def test_only_whole_characters_are_written(binary, execute, smollm2):
    prompt = "Copy: 😀🎉日本語 😀🎉日本語 😀🎉日本語 😀🎉"
    with start(binary, "run", smollm2, "--raw", "-p", prompt, "-n", "40", *GREEDY) as process:
        pieces = [piece for _, piece in chunks(process)]
    text = "".join(piece.decode() for piece in pieces)  # strict: raises on half a character
    assert any(len(c.encode()) >= 3 for c in text), "the test needs an answer with long characters"
    # A token that is half a character, forever: each becomes U+FFFD, none is written raw.
    code, out, _ = execute("tokenize", smollm2, "--json", "-p", "🦙")
    half = json.loads(out)["token_ids"][0]
    code, out, _ = execute("run", smollm2, "--raw", "-p", "x", "-n", "5", *GREEDY, "--logit-bias", f"{half}+1000")
    assert code == 0 and set(out.decode()) == {"\ufffd", "\n"}


def wait_for_work(pid):
    """Until a process has computed for a second: far more than loading a model takes."""
    ticks = 0
    while ticks < os.sysconf("SC_CLK_TCK"):
        time.sleep(0.02)
        with open(f"/proc/{pid}/stat") as file:
            ticks = sum(map(int, file.read().rsplit(")", 1)[1].split()[11:13]))


def test_interrupting_ends_cleanly(binary, smollm2):
    for json_flag in [[], ["--json"]]:
        arguments = ["run", smollm2, "--raw", "-p", "1, 2, 3, 4,", "-n", "2000", *GREEDY, *json_flag]
        with start(binary, *arguments) as process:
            if json_flag:
                wait_for_work(process.pid)
            else:
                os.read(process.stdout.fileno(), 100)
            process.send_signal(signal.SIGINT)
            before = time.monotonic()
            out, err = process.communicate(timeout=20)
            assert process.returncode == 130, err
            assert time.monotonic() - before < 3
            assert b"tok/s" in err.splitlines()[-1]
        if json_flag:
            assert json.loads(out)["finish_reason"] == "cancelled"


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_interrupting_leaves_no_half_file(binary, smollm2, tmp_path, asked):
    (tmp_path / "text.txt").write_text("one two three four five six seven " * 600)
    out = tmp_path / "out"
    out.mkdir()
    arguments = ["perplexity", smollm2, "-f", tmp_path / "text.txt", "--logits-out", out / "logits.npy"]
    with start(binary, *arguments) as process:
        wait_for_work(process.pid)
        assert len(list(out.iterdir())) == 1, "written under another name until it is whole"
        assert not (out / "logits.npy").exists()
        process.send_signal(asked)
        process.communicate(timeout=20)
    assert process.returncode == 130
    assert not list(out.iterdir())


def test_interrupting_before_there_is_an_answer(binary, tiny):
    with subprocess.Popen(
        [str(binary), "run", str(tiny)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        time.sleep(0.5)  # it waits for a prompt on stdin
        process.send_signal(signal.SIGINT)
        process.stdout.read()
    assert process.returncode == 130


def test_a_reader_that_goes_away_ends_it_quietly(binary, smollm2):
    with start(binary, "run", smollm2, "--raw", "-p", "1, 2, 3, 4,", "-n", "4000", *GREEDY) as process:
        os.read(process.stdout.fileno(), 10)
        process.stdout.close()
        before = time.monotonic()
        err = process.stderr.read()
        process.wait(timeout=20)
    assert time.monotonic() - before < 5
    assert process.returncode == 0 and b"error" not in err


def test_closed_streams_do_no_harm(binary, tiny, tmp_path):
    """Risk: with stdout closed, a result file gets its number and what is printed lands in it, or nobody hears of it."""
    (tmp_path / "text.txt").write_text("one two three four five " * 40)
    arguments = [binary, "perplexity", tiny, "-f", tmp_path / "text.txt", "--ctx", "64", "--logits-out"]
    closed = ["sh", "-c", '"$@" >&-', "sh"]
    done = subprocess.run([*closed, *map(str, arguments), tmp_path / "closed.npy"], capture_output=True, text=True)
    assert done.returncode == 4 and done.stderr.splitlines()[-1] == "sparkinfer: error: stdout: cannot write: it is closed"
    assert [path.name for path in tmp_path.iterdir()] == ["text.txt"]


@pytest.mark.parametrize("command", [["--help"], ["inspect"], ["run", "-n", "4", "-p", "x"], ["chat", "-n", "4"]])
def test_a_closed_stdout_is_an_error(binary, tiny, command):
    words = [command[0]] if command[0] == "--help" else [command[0], tiny, *command[1:]]
    done = subprocess.run(["sh", "-c", '"$@" >&-', "sh", binary, *words], input="hello\n", capture_output=True, text=True)
    assert done.returncode == 4 and "stdout: cannot write: it is closed" in done.stderr.splitlines()[-1]


def test_a_full_disk_is_an_error(binary, tiny):
    with open("/dev/full", "w") as full:
        done = subprocess.run([str(binary), "inspect", str(tiny)], stdout=full, stderr=subprocess.PIPE)
    assert done.returncode == 4 and b"No space left" in done.stderr


def test_no_user_waits_for_the_first_token(binary, smollm2):
    """Two seconds from start; the best of three, because other programs run on a test machine too."""
    waits = []
    for _ in range(3):
        before = time.monotonic()
        with start(binary, "run", smollm2, "-p", QUESTION, "-n", "4") as process:
            os.read(process.stdout.fileno(), 1)
            waits.append(time.monotonic() - before)
            process.communicate()
    assert min(waits) <= 2, waits


# Runs a command and tells its peak memory. Linux counts what the starting process had against a child, so a small one starts it.
MEASURED = """import resource, subprocess, sys
code = subprocess.run(sys.argv[1:]).returncode
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss, file=sys.stderr)
sys.exit(code)"""


def test_memory_stays_within_its_bounds(binary, smollm2):
    """Resident memory ≤ file + KV + 150 MB, with a context that is mostly empty and one that is full."""
    layers, heads, width = 30, 3, 64
    for context, arguments in [(8192, ["-n", "8", "--ctx", "8192"]), (608, ["-n", "8", "--ctx", "608"])]:
        text = "word " * 590 if context == 608 else "word"
        command = [binary, "run", smollm2, "--raw", "-p", text, "--json", *arguments]
        done = subprocess.run([sys.executable, "-c", MEASURED, *map(str, command)], capture_output=True, check=False)
        assert done.returncode == 0, done.stderr
        peak = int(done.stderr.split()[-1]) * 1024
        kv = context * layers * 2 * heads * width * 4
        assert peak <= smollm2.stat().st_size + kv + 150e6, peak
        assert abs(json.loads(done.stdout)["timings"]["peak_rss_bytes"] - peak) < 10e6


def test_help_and_version_on_every_level(execute):
    code, out, err = execute("--help")
    assert code == 0 and err == b""
    commands = ["run", "inspect", "tokenize", "explain", "perplexity", "bench"]
    for command in commands:
        assert command in out.decode()
        code, text, err = execute(command, "--help")
        assert code == 0 and err == b"" and b"Examples:" in text
    version = execute("--version")[1]
    assert re.match(rb"sparkinfer \d+\.\d+\.\d+( \(commit [0-9a-f]{7,}(-dirty)?\))?\n", version)


def test_colour_only_on_terminals(execute, tiny):
    assert b"\x1b" not in execute("run", tiny, "-p", "")[2]
