"""What quantising costs a real model: SmolLM2, decoded to F16, quantised again.

Risk: files that load and speak, and have lost more than their format asks for. Bounds a third above what was seen, which is what
llama.cpp's quantiser loses: the bytes are the same (test_quantize_bytes.py).
"""

import re
from pathlib import Path

import gguf
import numpy as np
import pytest

TEXT = Path(__file__).resolve().parent.parent / "data" / "text.txt"
# Mean divergence in nat. The source's weights come from Q4_1 blocks, which that type can give back whole.
BOUNDS = {"Q8_0": 1.6e-3, "Q6_K": 5e-3, "Q4_K_M": 6e-2, "Q4_1": 1e-4}


@pytest.fixture(scope="module")
def base(sparkinfer, smollm2, tmp_path_factory):
    """The F16 file, and the log-probabilities of its model for the start of the text."""
    folder = tmp_path_factory.mktemp("smollm2")
    source, text, saved = folder / "f16.gguf", folder / "text.txt", folder / "base.kld"
    text.write_bytes(TEXT.read_bytes()[:4000])
    sparkinfer("quantize", smollm2, source, "F16")
    sparkinfer("perplexity", source, "-f", text, "--ctx", 256, "--save-kl-base", saved)
    return source, saved


def test_decoding_loses_no_more_than_half_precision(base, smollm2):
    decoded = {t.name: t.data for t in gguf.GGUFReader(base[0]).tensors}
    for tensor in list(gguf.GGUFReader(smollm2).tensors)[:30]:
        exact = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        expected = exact if tensor.tensor_type.name == "F32" else exact.astype(np.float16)
        assert np.array_equal(decoded[tensor.name], expected), tensor.name


@pytest.mark.parametrize("kind", BOUNDS)
def test_divergence(sparkinfer, base, tmp_path, kind):
    sparkinfer("quantize", base[0], tmp_path / "out.gguf", kind)
    text = sparkinfer("perplexity", tmp_path / "out.gguf", "--kl-base", base[1]).stdout
    mean = float(re.search(r"^Mean    KLD: +([0-9.-]+)", text, re.MULTILINE)[1])
    assert mean < BOUNDS[kind]
    assert kind == "Q4_1" or mean > BOUNDS[kind] / 4, "a bound that says nothing"
