"""Tiny models of every architecture against float64 transformers.

Risk: an engine that writes fluent text with a wrong rotation, head mapping, norm, router, state or block format. The models
are recreated from their formula (tools/make_tiny_model.py), so what is loaded is what the goldens were computed from.
"""

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from golden_checks import check_greedy, check_logits

from tiny_gguf import write_tiny_gguf
from tiny_model import VARIANTS, has_gguf, write_hf

GOLDEN = Path(__file__).resolve().parent
BUILD = GOLDEN.parent.parent / "build" / "golden"
WITH_GGUF = [name for name, v in VARIANTS.items() if has_gguf(v)]
QUANTISED = sorted(path.stem for path in (GOLDEN / "quantised").glob("*.gguf"))
GREEDY_TOKENS = 24
SOURCES = [
    (name, source)
    for name in VARIANTS
    for source in ("folder", "gguf")
    if source == "folder" or name in WITH_GGUF
]
SOURCES += [("qwen35-r2", "shards"), ("qwen3moe", "shards")]


def manifest(folder):
    return json.loads((folder / "manifest.json").read_text())


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture(scope="session")
def tiny():
    """Recreates a variant as a folder, a folder of three shards, or a GGUF, once a session; gives its path."""
    made = {}

    def make(name, source):
        path = BUILD / (
            f"{name}.gguf" if source == "gguf" else name if source == "folder" else f"{name}-{source}"
        )
        if path not in made:
            BUILD.mkdir(parents=True, exist_ok=True)
            if source == "gguf":
                write_tiny_gguf(VARIANTS[name], path)
            else:
                write_hf(VARIANTS[name], path, shards=3 if source == "shards" else 1)
            made[path] = True
        return path

    return make


def logits_of(sparkinfer, model, tokens, scratch, *options):
    np.save(scratch / "tokens.npy", tokens)
    files = ["--tokens", scratch / "tokens.npy", "--logits-out", scratch / "logits.npy"]
    sparkinfer("perplexity", model, *files, *options)
    return np.load(scratch / "logits.npy")


@pytest.mark.parametrize("name", VARIANTS)
def test_recreated_bytes(name, tiny):
    """The formula gives, on this machine, the bytes that were proved equal to the converter's."""
    expected = manifest(GOLDEN / "models" / name)
    assert sha256(tiny(name, "folder") / "model.safetensors") == expected["safetensors_sha256"]
    if name in WITH_GGUF:
        assert sha256(tiny(name, "gguf")) == expected["gguf_sha256"]


@pytest.mark.parametrize("name,source", SOURCES)
def test_logits(name, source, tiny, sparkinfer, tmp_path):
    """Next to no divergence and the same best token, from the folder and from the GGUF."""
    golden = GOLDEN / "models" / name
    ours = logits_of(sparkinfer, tiny(name, source), np.load(golden / "tokens.npy"), tmp_path)
    check_logits(np.load(golden / "logits.npy"), ours)


@pytest.mark.parametrize("name,source", SOURCES)
def test_greedy(name, source, tiny, run_json):
    """Decoding token by token, through cache and state, continues a text as a forward over the whole text does."""
    oracle = json.loads((GOLDEN / "models" / name / "greedy.json").read_text())
    answer = run_json(tiny(name, source), oracle["prompt"], GREEDY_TOKENS)
    assert answer["prompt_token_ids"] == oracle["prompt_ids"]
    check_greedy(answer["token_ids"], oracle, 1e-3, GREEDY_TOKENS)


@pytest.mark.parametrize("activations,mean_kl", [("f32", 1e-9), ("int16", 1e-6)])
@pytest.mark.parametrize("arch", QUANTISED)
def test_quantised_logits(arch, activations, mean_kl, sparkinfer, tmp_path):
    """Files of llama.cpp's quantiser against transformers on the weights that the gguf package decodes from them."""
    golden = GOLDEN / "quantised" / arch
    file = GOLDEN / "quantised" / f"{arch}.gguf"
    assert sha256(file) == manifest(golden)["sha256"]
    tokens = np.load(golden / "tokens.npy")
    ours = logits_of(sparkinfer, file, tokens, tmp_path, "--activations", activations)
    check_logits(np.load(golden / "logits.npy"), ours, mean_kl, 1e-3 if activations == "f32" else 1e-2)


@pytest.mark.parametrize("arch", QUANTISED)
def test_quantised_greedy(arch, run_json):
    oracle = json.loads((GOLDEN / "quantised" / arch / "greedy.json").read_text())
    answer = run_json(GOLDEN / "quantised" / f"{arch}.gguf", oracle["prompt"], GREEDY_TOKENS)
    assert answer["prompt_token_ids"] == oracle["prompt_ids"]
    check_greedy(answer["token_ids"], oracle, 1e-3, GREEDY_TOKENS)


def test_every_architecture_has_a_quantised_file():
    assert QUANTISED == sorted({v["arch"] for v in VARIANTS.values()})
