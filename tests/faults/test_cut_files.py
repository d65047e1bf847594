"""Risk: a model file that is cut while it is in use ends the program by a signal, without a word, and half a file stays."""

import http.client
import re
import shutil
import subprocess

import pytest

WAIT_S = 120


@pytest.fixture
def model(models, tmp_path):
    path = tmp_path / "model.gguf"
    shutil.copy(models / "tiny.gguf", path)
    return path


def cut(model):
    """Half of the weights are gone, as if somebody copied another file over it."""
    with model.open("r+b") as file:
        file.truncate(model.stat().st_size // 2)


def ended_in_a_sentence(process, model):
    err = process.communicate(timeout=WAIT_S)[1].decode()
    errors = [line for line in err.splitlines() if "error:" in line]
    assert process.returncode == 3, err
    assert len(errors) == 1, err
    assert errors[0].startswith(f"sparkinfer: error: {model}: byte ") and "has become shorter" in errors[0], err


def test_cut_while_a_text_is_rated(binary, model, models, tmp_path):
    text, out = tmp_path / "text.txt", tmp_path / "logits.npy"
    text.write_text("The quick brown fox jumps over the lazy dog. " * 2000)
    command = [binary, "perplexity", model, "-f", text, "--ctx", 16, "-t", 2, "--logits-out", out]
    with subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                          stderr=subprocess.PIPE) as process:
        assert process.stdout.read(3) == b"[1]"    # it computes
        cut(model)
        ended_in_a_sentence(process, model)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model.gguf", "text.txt"]


def test_cut_while_it_is_served(binary, model):
    command = [str(binary), "serve", str(model), "--port", "0", "--slots", "1", "--ctx", "256", "-t", "1"]
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        port = int(re.search(rb"127\.0\.0\.1:(\d+) ", process.stdout.readline()).group(1))
        cut(model)
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=WAIT_S)
        connection.request("POST", "/v1/completions", '{"prompt": "Hello", "max_tokens": 2}',
                           {"content-type": "application/json"})
        with pytest.raises(OSError):    # it went away
            connection.getresponse()
        connection.close()
        ended_in_a_sentence(process, model)


def test_cut_while_a_prompt_is_awaited(binary, model):
    """The file is read again for its weights then, and says itself that it is damaged."""
    command = [str(binary), "run", str(model), "-n", "1"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        cut(model)
        out, err = process.communicate(b"Hello", timeout=WAIT_S)
    assert process.returncode == 3 and out == b"", err
    errors = [line for line in err.decode().splitlines() if "error:" in line]
    assert len(errors) == 1 and str(model) in errors[0], err
