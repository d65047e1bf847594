"""Risk: a saved base that the next run, or llama-perplexity, misreads; windows or tokens that are not those of the base."""

import re
import struct
from pathlib import Path

import numpy as np
import pytest

TEXT = Path(__file__).resolve().parent.parent / "data" / "text.txt"


@pytest.fixture(scope="module")
def base(sparkinfer, tiny, tmp_path_factory):
    path = tmp_path_factory.mktemp("kl") / "base.kld"
    done = sparkinfer("perplexity", tiny, "-f", TEXT, "--ctx", 128, "--save-kl-base", path)
    return path, done.stdout


def figure(text, name):
    return float(re.search(rf"^{re.escape(name)}\s*: +(-?[0-9.]+)", text, re.MULTILINE)[1])


def test_file_is_llama_perplexitys(base, sparkinfer, tiny, tmp_path):
    data = base[0].read_bytes()
    window, vocabulary, windows = struct.unpack_from("<iii", data, 8)
    assert data[:8] == b"_logits_" and (window, vocabulary) == (128, 512)
    tokens = np.frombuffer(data, "<i4", window * windows, 20)
    rows = np.frombuffer(data, "<u2", offset=20 + tokens.nbytes).reshape(windows, 63, 4 + 512)
    np.save(tmp_path / "ids.npy", tokens[:window])
    sparkinfer("perplexity", tiny, "--tokens", tmp_path / "ids.npy", "--logits-out", tmp_path / "logits.npy")
    logits = np.load(tmp_path / "logits.npy").astype(np.float64)[64:127]
    expected = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    numbers = rows[0, :, :4].copy().view("<f4")
    expected = np.maximum(expected, expected.max(1, keepdims=True) - 16)
    found = numbers[:, :1] * rows[0, :, 4:] + numbers[:, 1:]
    assert np.abs(found - expected).max() < 3e-4


def test_a_model_against_itself_and_against_less_of_it(base, sparkinfer, tiny, tmp_path):
    path, saved = base
    same = sparkinfer("perplexity", tiny, "--kl-base", path).stdout
    assert saved.splitlines()[-1] == same.splitlines()[1], "the perplexity of the base"
    assert abs(figure(same, "Mean    KLD")) < 1e-6 and figure(same, "Same top p") > 99.5
    assert figure(same, "Mean PPL(Q)/PPL(base)") == pytest.approx(1, abs=0.01)  # some tokens are cut off
    losses = []
    for kind in ("Q8_0", "Q4_0"):
        out = tmp_path / f"{kind}.gguf"
        sparkinfer("quantize", tiny, out, kind)
        text = sparkinfer("perplexity", out, "--kl-base", path).stdout
        losses.append(figure(text, "Mean    KLD"))
        assert figure(text, "Minimum KLD") <= figure(text, "Median  KLD") <= figure(text, "99.9%   KLD")
    assert 0 < losses[0] < losses[1] / 10


def test_what_does_not_go_together(refused, sparkinfer, tiny, smollm2, base, tmp_path):
    path = base[0]
    assert "--kl-base" in refused(2, "perplexity", tiny, "--kl-base", path, "-f", TEXT)
    assert "--save-kl-base" in refused(2, "perplexity", tiny, "--tokens", "x.npy", "--save-kl-base", "y")
    assert "vocabulary" in refused(3, "perplexity", smollm2, "--kl-base", path)
    cut = tmp_path / "cut.kld"
    cut.write_bytes(path.read_bytes()[:-2])
    assert "cut.kld" in refused(3, "perplexity", tiny, "--kl-base", cut)
    assert "missing" in refused(
        3, "perplexity", tiny, "-f", TEXT, "--ctx", 128, "--save-kl-base", tmp_path / "missing" / "x"
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["cut.kld"]


def test_log_probabilities_above_zero_are_refused(execute, tiny, base, tmp_path):
    data = bytearray(base[0].read_bytes())
    window, _, windows = struct.unpack_from("<iii", data, 8)
    struct.pack_into("<f", data, 20 + 4 * window * windows, 1.0)  # the first row's scale
    (tmp_path / "bad.kld").write_bytes(data)
    code, out, err = execute("perplexity", tiny, "--kl-base", tmp_path / "bad.kld")
    assert (code, out) == (3, b"") and b"row 0 has log-probabilities up to" in err


def test_no_input_is_replaced(refused, tiny, base, tmp_path):
    model, text, saved = tmp_path / "m.gguf", tmp_path / "t.txt", tmp_path / "b.kld"
    for copy, original in ((model, tiny), (text, TEXT), (saved, base[0])):
        copy.write_bytes(Path(original).read_bytes())
    for out in ("--logits-out", "--save-kl-base"):
        for victim in (model, text):
            message = refused(2, "perplexity", model, "-f", text, "--ctx", 128, out, victim)
            assert out in message and "would be lost" in message
    assert "would be lost" in refused(2, "perplexity", model, "--kl-base", saved, "--logits-out", saved)
    assert saved.read_bytes() == base[0].read_bytes() and text.read_bytes() == TEXT.read_bytes()
    assert "is empty" in refused(2, "perplexity", model, "-f", text, "--ctx", 128, "--logits-out", "")
