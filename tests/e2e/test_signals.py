"""Risk: SIGINT or SIGTERM, whenever it comes, ends a command with another code than 130, with an error, or beside half a file."""

import signal
import subprocess
import time

import numpy as np
import pytest
from terminal import Terminal

from tiny_model import VARIANTS, write_hf

# What is written to OUT, if anything; all of it takes seconds, one thread.
COMMANDS = {
    "run": ["run", "{model}", "--raw", "-f", "{text}", "-n", "200", "--temp", "0", "-t", "1"],
    "run, JSON": ["run", "{model}", "-p", "Tell a story.", "--json", "--temp", "0", "-t", "1"],
    "perplexity": ["perplexity", "{model}", "-f", "{text}", "-t", "1", "--save-kl-base", "{out}/base.kld"],
    "logits": ["perplexity", "{model}", "--tokens", "{ids}", "-t", "1", "--logits-out", "{out}/logits.npy"],
    "quantize": ["quantize", "{model}", "{out}/small.gguf", "Q5_K_M", "--requantize", "-t", "1"],
    "convert": ["convert", "{folder}", "{out}/whole.gguf"],
    "inspect": ["inspect", "{model}", "--strict"],
    "bench": ["bench", "{model}", "-t", "1", "--jsonl", "{out}/rows.jsonl"],
    "tokenize, waiting": ["tokenize", "{model}"],
}


@pytest.fixture(scope="module")
def inputs(smollm2, tmp_path_factory):
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "text.txt").write_text("The quick brown fox jumps over the lazy dog. " * 400)
    np.save(folder / "ids.npy", np.arange(100, 1100, dtype=np.int32))
    write_hf({**VARIANTS["llama"], "layers": 60}, folder / "model")  # 71 MB
    return {"model": smollm2, "text": folder / "text.txt", "ids": folder / "ids.npy", "folder": folder / "model"}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("name", COMMANDS)
def test_at_any_time(binary, inputs, tmp_path, name, number):
    out = tmp_path / "out"
    out.mkdir()
    command = [str(binary), *(word.format(out=out, **inputs) for word in COMMANDS[name])]
    ended = []
    for after in (0.0, 0.002, 0.01, 0.04, 0.15, 0.5, 1.2):
        # Whoever runs the tests may ignore a signal, which would be lost before main().
        process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                   preexec_fn=lambda: signal.signal(number, signal.SIG_DFL))  # fmt: skip
        time.sleep(after)
        process.send_signal(number)
        _, err = process.communicate(timeout=60)
        ended.append(process.returncode)
        assert process.returncode in (130, -number, 0), "before main() a signal is the system's; 0 where it came too late"
        assert b"error:" not in err, err
        left = [path.name for path in out.iterdir()]
        if process.returncode != 0:
            assert not any(".tmp" in file or file.endswith((".kld", ".npy", ".gguf")) for file in left), (after, left)
        for path in out.iterdir():
            path.unlink()
    assert 130 in ended, ended


@pytest.mark.parametrize("command, bar", [("quantize", "quantising ["), ("convert", "converting [")])
def test_bars_of_what_takes_long_on_a_terminal_alone(binary, inputs, tmp_path, command, bar):
    out = tmp_path / "out.gguf"
    words = {"quantize": ["quantize", inputs["model"], out, "Q5_K_M", "--requantize", "-t", 1],
             "convert": ["convert", inputs["folder"], out]}[command]  # fmt: skip
    done = subprocess.run([str(binary), *map(str, words)], capture_output=True, check=True)
    assert b"[" not in done.stderr and b"\r" not in done.stderr and done.stdout == b""
    out.unlink()
    with Terminal([binary, *words], columns=100) as terminal:
        while not list(tmp_path.iterdir()):
            time.sleep(0.001)
        terminal.signal(signal.SIGSTOP)  # however fast the machine is, it takes long now
        time.sleep(0.5)
        terminal.signal(signal.SIGCONT)
        terminal.expect("sparkinfer: " + bar)
        assert terminal.end(120) == 0
        assert not any(bar in line for line in terminal.screen(100).text()), "the bar is taken away"
