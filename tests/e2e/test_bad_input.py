"""Risk: something that a user or a file gets wrong ends in a crash, a wrong exit code, or words that do not help."""

import os
import resource
import shutil
import struct
import subprocess
import tempfile
from pathlib import Path

import numpy as np
import pytest
from gguf_edit import Gguf, float_value, string_value

BAD_NUMBERS = [
    ("--temp", "-1"),
    ("--temp", "nan"),
    ("--temp", "inf"),
    ("--temp", "1e300"),
    ("--top-p", "2"),
    ("--top-p", "0"),
    ("--top-p", "NaN"),
    ("--min-p", "-0.1"),
    ("--min-p", "nan"),
    ("--top-k", "-3"),
    ("--top-k", "1.5"),
    ("--repeat-penalty", "0"),
    ("--repeat-penalty", "1e-50"),
    ("--repeat-last-n", "-2"),
    ("--presence-penalty", "3"),
    ("--frequency-penalty", "nan"),
    ("--seed", "-1"),
    ("--seed", "x"),
    ("--logprobs", "21"),
    ("--logit-bias", "5"),
    ("--logit-bias", "5+nan"),
    ("--ctx", "0"),
    ("-n", "0"),
    ("-n", "-2"),
    ("-n", "99999999999999999999"),
    ("-t", "0"),
    ("-t", "513"),
]


@pytest.mark.parametrize(("flag", "value"), BAD_NUMBERS)
def test_bad_numbers_are_usage_errors(refused, tiny, flag, value):
    message = refused(2, "run", tiny, "-p", "x", flag, value)
    assert flag in message and value in message and "expected" in message


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([], "--help"),
        (["rnu"], "did you mean 'run'"),
        (["frobnicate"], "--help"),
        (["run"], "MODEL is required"),
        (["run", "m", "--tempp", "1"], "did you mean '--temp'"),
        (["run", "m", "-p", "a", "-f", "b"], "excludes"),
        (["run", "m", "two"], "'two' is not expected"),
        (["run", "m", "-p"], "-p"),
        (["explain", "m", "--gpu", "a100"], "expected h200, rtx5090, pro6000 or spark"),
        (["perplexity", "m"], "give -f FILE, --tokens"),
        (["perplexity", "m", "-f", "a", "--tokens", "b"], "excludes"),
        (["run", "m", "-p", "a", "--backend", "gpu"], "expected auto, cuda or cpu"),
        (["bench", "m", "-o", "xml"], "expected md, csv, json or jsonl"),
        (["bench", "m", "-p", "1,x"], "'x'"),
        (["tokenize", "m", "--decode", "1,-2"], "'-2'"),
    ],
)
def test_usage_errors(refused, arguments, words):
    assert words in refused(2, *arguments)


def test_a_backend_that_this_build_lacks(refused, execute, tiny, tmp_path):
    """The binary under test is built without CUDA. Asking for it is an error, and nothing is said unasked."""
    sentence = "this build has no CUDA backend; configure with -DSPARKINFER_CUDA=ON"
    ids = tmp_path / "ids.npy"
    np.save(ids, np.arange(8, dtype=np.int32))
    for command in [("run", tiny, "-p", "x"), ("bench", tiny, "-p", "1", "-n", "0"), ("perplexity", tiny, "--tokens", ids)]:
        assert sentence in refused(2, *command, "--backend", "cuda"), command[0]
    for name in ["auto", "cpu"]:
        code, _, err = execute("run", tiny, "--raw", "-p", "x", "-n", "1", "--seed", "1", "--backend", name)
        assert code == 0 and b"cuda" not in err.lower(), err


def test_a_bench_that_cannot_be(refused, tiny):
    assert "no test is left" in refused(2, "bench", tiny, "-p", "0", "-n", "0")
    assert "made for 1024" in refused(2, "bench", tiny, "-p", "2000", "-o", "json")


def test_prompts_that_cannot_be(refused, tiny, tmp_path):
    assert "empty" in refused(3, "run", tiny, "-p", "")
    assert "empty" in refused(3, "run", tiny)
    assert "0xff at offset 3" in refused(3, "run", tiny, stdin=b"abc\xff")
    assert "0xc3 at offset 1" in refused(3, "run", tiny, stdin=b"a\xc3")
    assert "0xed at offset 0" in refused(3, "tokenize", tiny, stdin=b"\xed\xa0\x80")
    assert "0xfe at offset 0" in refused(3, "run", tiny, "-p", b"\xfe".decode(errors="surrogateescape"))
    assert "not there" in refused(3, "run", tiny, "-f", tmp_path / "not there")
    assert "directory" in refused(3, "run", tiny, "-f", tmp_path)


def test_a_prompt_of_more_than_64_mib_is_refused(refused, tiny):
    for command in ("run", "chat", "tokenize"):
        assert "67108864 bytes" in refused(3, command, tiny, stdin=b"a" * (64 * 1024 * 1024 + 1))


def test_a_prompt_longer_than_the_context(refused, tiny, execute):
    words = "one two three four five six seven eight nine ten " * 200
    assert "context is 1024" in refused(3, "run", tiny, "--raw", "-p", words)
    message = refused(3, "run", tiny, "--raw", "-p", "a b c d e f g h i j k l m n o p", "--ctx", "4")
    assert "context is 4" in message
    assert "at most 1024" in refused(2, "run", tiny, "-p", "x", "--ctx", "1025")
    message = refused(3, "run", tiny, stdin=b"a" * 60_000_000, timeout=20)  # minutes of work if it were tokenized
    assert "60000000 bytes" in message and "context is 1024" in message


def test_paths_that_are_no_model(refused, tmp_path, tiny):
    empty = tmp_path / "folder"
    empty.mkdir()
    for command in ["run", "inspect", "tokenize", "explain", "bench"]:
        assert "config.json" in refused(3, command, empty, stdin=b"x"), command
        assert "No such file" in refused(3, command, tmp_path / "missing.gguf", stdin=b"x"), command
    text = tmp_path / "text.gguf"
    text.write_text("this is no model, whatever its name says\n" * 10)
    refused(3, "inspect", text)
    refused(3, "run", text, "-p", "x")
    (tmp_path / "nothing.gguf").write_bytes(b"")
    refused(3, "inspect", tmp_path / "nothing.gguf")
    refused(3, "inspect", "/dev/null")
    os.mkfifo(tmp_path / "pipe")
    refused(3, "inspect", tmp_path / "pipe", timeout=20)


@pytest.mark.parametrize("share", [0.0001, 0.001, 0.01, 0.5, 0.999999])
def test_truncated_files(refused, tiny, tmp_path, share):
    data = tiny.read_bytes()
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(data[: int(len(data) * share)])
    for command in [("inspect", cut), ("run", cut, "-p", "x")]:
        assert "cut.gguf" in refused(3, *command)


def test_headers_that_lie(refused, tiny, tmp_path):
    data = tiny.read_bytes()
    path = tmp_path / "lies.gguf"
    for name, at, lie in [
        ("magic", 0, b"GGUX"),
        ("version 1", 4, struct.pack("<I", 1)),
        ("version 99", 4, struct.pack("<I", 99)),
        ("tensors", 8, struct.pack("<Q", 1 << 62)),
        ("keys", 16, struct.pack("<Q", 0xFFFFFFFFFFFFFFFF)),
        ("key length", 24, struct.pack("<Q", 0xFFFFFFFFFFFFFFF0)),
    ]:
        path.write_bytes(data[:at] + lie + data[at + len(lie) :])
        message = refused(3, "inspect", path)
        assert "lies.gguf" in message, name


def test_models_that_are_not_whole(refused, tiny, tmp_path):
    path = tmp_path / "model.gguf"

    def changed(change):
        gguf = Gguf(tiny)
        change(gguf)
        return gguf.write(path)

    changed(lambda g: g.set("general.architecture", string_value("mamba")))
    assert "mamba" in refused(3, "run", path, "-p", "x")
    changed(lambda g: g.tensors.remove(next(t for t in g.tensors if t[0] == "blk.1.ffn_up.weight")))
    assert "blk.1.ffn_up" in refused(3, "run", path, "-p", "x")
    changed(lambda g: g.keys.append(g.keys[0]))
    assert g_key(tiny) in refused(3, "run", path, "-p", "x")
    changed(lambda g: g.set("tokenizer.ggml.tokens", None))
    assert "tokenizer.ggml.tokens" in refused(3, "run", path, "-p", "x")
    changed(lambda g: g.set("tokenizer.ggml.pre", string_value("klingon")))
    assert "klingon" in refused(3, "tokenize", path, "-p", "x")
    changed(lambda g: g.set("general.sampling.temp", float_value(-1)))
    assert "general.sampling.temp" in refused(3, "run", path, "-p", "x")


def g_key(path):
    return Gguf(path).keys[0][0]


def test_templates_that_do_not_end_or_do_not_parse(refused, execute, tiny, tmp_path):
    path = tmp_path / "model.gguf"
    loop = "{% for a in range(99999) %}{% for b in range(99999) %}{% for c in range(99999) %}{% endfor %}{% endfor %}{% endfor %}"
    long = "{% set ns = namespace(s='xxxxxxxxxxxxxxxx') %}{% for a in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s }}"
    recursive = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}"
    nested = "{% set ns = namespace(s=1) %}{% for a in range(90000) %}{% set ns.s = [ns.s] %}{% endfor %}{{ ns.s }}"
    wide = "{% set ns = namespace(s=[1]) %}{% for a in range(60) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}{{ ns.s }}"
    walk = "{% set ns = namespace(s=[1]) %}{% for a in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}{{ ns.s | length }}"
    chain = "{{ " + "-" * 500_000 + "x }}"
    calls = "{{ x" + "()" * 300_000 + " }}"
    wrong = ["{% if %}", "{{ raise_exception('not today') }}"]
    for template in [loop, long, recursive, nested, wide, walk, chain, calls, *wrong]:
        Gguf(tiny).set("tokenizer.chat_template", string_value(template)).write(path)
        message = refused(3, "run", path, "-p", "x", timeout=20)
        assert "template" in message and "model.gguf" in message, message
        code, _, _ = execute("run", path, "--raw", "-p", "x", "-n", "1")
        assert code == 0
    Gguf(tiny).set("tokenizer.chat_template", None).write(path)
    assert "--raw" in refused(3, "run", path, "-p", "x")


@pytest.fixture
def public_folder():
    """A folder that every user may enter; pytest's own belong to one user."""
    with tempfile.TemporaryDirectory(prefix="sparkinfer-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        yield folder


def test_an_unreadable_path(tiny, public_folder, binary):
    """As an ordinary user: root may read everything, so root runs the program as nobody."""
    program = public_folder / "sparkinfer"
    shutil.copy(binary, program)
    program.chmod(0o755)
    model = public_folder / "secret.gguf"
    shutil.copy(tiny, model)
    model.chmod(0)
    closed = public_folder / "closed"
    closed.mkdir()
    shutil.copy(tiny, closed / "model.gguf")
    closed.chmod(0)
    user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
    try:
        for path in [model, closed / "model.gguf", closed]:
            for command in ["inspect", "run"]:
                done = subprocess.run(
                    [program, command, path], stdin=subprocess.DEVNULL, capture_output=True, text=True, cwd="/", **user
                )
                assert done.returncode == 3, done.stderr
                assert "Permission denied" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr
    finally:
        closed.chmod(0o755)


def test_no_thread_is_left(tiny, public_folder, binary):
    """As an ordinary user: root may start any number."""
    user = {"user": "nobody", "group": "nogroup", "extra_groups": []} if os.geteuid() == 0 else {}
    for source, name in [(binary, "sparkinfer"), (tiny, "model.gguf")]:
        shutil.copy(source, public_folder / name)
        (public_folder / name).chmod(0o755)
    done = subprocess.run(
        [public_folder / "sparkinfer", "bench", public_folder / "model.gguf", "-p", "4", "-n", "0", "-t", "8"],
        capture_output=True,
        text=True,
        cwd="/",
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NPROC, (1, 1)),
        **user,
    )
    assert done.returncode == 4, done.stderr
    assert "threads" in done.stderr and len(done.stderr.splitlines()) == 1, done.stderr


def test_weights_that_are_no_numbers(execute, tiny, tmp_path):
    gguf = Gguf(tiny)
    gguf.data = b"\xff" * len(gguf.data)
    text = tmp_path / "text"
    text.write_text("one two three four five six seven eight nine ten " * 20)
    code, _, err = execute("perplexity", gguf.write(tmp_path / "nan.gguf"), "-f", text, "--ctx", "64")
    assert code == 3 and b"nan.gguf: the logits after token 32 are not finite" in err, err


def test_ids_that_are_no_array(refused, tiny, tmp_path):
    import numpy as np

    path = tmp_path / "ids.npy"
    for array, words in [
        (np.zeros((2, 3), dtype=np.int64), "2 dimensions"),
        (np.zeros(5, dtype=np.float32), "'<f4'"),
        (np.array([1, 512]), "512"),
        (np.array([1, -1]), "-1"),
        (np.zeros(0, dtype=np.int32), "no tokens"),
        (np.zeros(1025, dtype=np.int32), "1024"),
    ]:
        np.save(path, array)
        assert words in refused(3, "perplexity", tiny, "--tokens", path)
    np.save(path, np.zeros(8, dtype=np.int32))
    path.write_bytes(path.read_bytes()[:-1])
    refused(3, "perplexity", tiny, "--tokens", path)
    np.save(path, np.zeros(8, dtype=np.int32))
    refused(3, "perplexity", tiny, "--tokens", path, "--logits-out", tmp_path / "no" / "out.npy")
    os.mkfifo(tmp_path / "pipe")
    for there in [tmp_path, tmp_path / "pipe"]:  # they would be replaced by a file
        assert "regular file" in refused(3, "perplexity", tiny, "--tokens", path, "--logits-out", there)


def test_ids_outside_of_the_vocabulary(refused, tiny):
    assert "512" in refused(3, "tokenize", tiny, "--decode", "1,512")
    assert "600" in refused(3, "run", tiny, "-p", "x", "--logit-bias", "600+1")
