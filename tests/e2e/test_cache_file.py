"""Risk: `serve --cache-file` forgets what it was told to keep, answers otherwise from it, or begins with a damaged file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from test_serve import START_S, Serve

ROOT = Path(__file__).resolve().parents[2]
TALK = [{"role": "system", "content": "You keep the log of a ship. " * 12}, {"role": "user", "content": "Where are we?"}]


@pytest.fixture(scope="module", params=["llama", "qwen35-r2"])
def model(request, tmp_path_factory):
    """An attention model, and a hybrid whose recurrent state must be in the file too."""
    path = tmp_path_factory.mktemp("model") / "model.gguf"
    subprocess.run([sys.executable, str(ROOT / "tools" / "make_tiny_model.py"), request.param, "--gguf", str(path)],
                   check=True, capture_output=True)
    return path


def ask(server, messages):
    """(text, prompt tokens, cached tokens) of an answer."""
    body = {"messages": messages, "max_tokens": 12, "temperature": 0, "ignore_eos": True}
    status, data = server.ask("POST", "/v1/chat/completions", json.dumps(body), {"content-type": "application/json"})
    assert status == 200, data
    answer = json.loads(data)
    return (answer["choices"][0]["message"]["content"], answer["usage"]["prompt_tokens"],
            answer["usage"]["prompt_tokens_details"]["cached_tokens"])


def kept(binary, model, path):
    """Runs a server that writes the file; returns its conversation and the tokens of its prompt."""
    with Serve(binary, model, "--cache-file", path) as server:
        text, tokens, cached = ask(server, TALK)
        assert cached == 0 and not path.exists()
        code, err = server.end()
        assert code == 0 and "wrote what requests have in common" in err, err
    return [*TALK, {"role": "assistant", "content": text}, {"role": "user", "content": "And tomorrow?"}], tokens


def test_a_new_process_goes_on_with_it(binary, model, tmp_path):
    path = tmp_path / "kept"
    talk, tokens = kept(binary, model, path)
    with Serve(binary, model) as fresh:
        plain, whole, cached = ask(fresh, talk)
        assert cached == 0 and whole > tokens
    with Serve(binary, model, "--cache-file", path) as again:
        text, asked, cached = ask(again, talk)
        assert again.end()[0] == 0
    # Pages and recurrent states are kept at multiples of 64 tokens.
    assert cached >= tokens // 64 * 64 > 0 and asked == whole, f"{cached} of {tokens} tokens were there after the restart"
    assert text == plain


def flipped(data, at):
    return data[:at] + bytes([data[at] ^ 0x10]) + data[at + 1:]


def test_a_damaged_file_is_refused(binary, model, tmp_path):
    path = tmp_path / "kept"
    kept(binary, model, path)
    good = path.read_bytes()
    damages = {"header": flipped(good, 20), "a record": flipped(good, 60), "a page": flipped(good, len(good) // 2),
               "the last byte": flipped(good, len(good) - 1), "cut": good[:-100], "longer": good + b"x", "empty": b"",
               "something else": b"{}\n" * 100}
    for what, data in damages.items():
        path.write_bytes(data)
        with Serve(binary, model, "--cache-file", path, ready=False) as server:
            assert server.process.wait(START_S) == 3, what
            errors = [line for line in server.process.stderr.read().splitlines() if "error:" in line]
            assert len(errors) == 1 and str(path) in errors[0], (what, errors)
            assert server.process.stdout.read() == "", what
        assert path.read_bytes() == data, f"{what}: the file was changed"
