"""`convert` against what llama.cpp's converter makes of the same folders (tools/tiny_gguf.py, proven equal to it).

Risk: a row order, a norm's one, a token's kind or a key that llama.cpp reads otherwise: fluent nonsense there.
"""

import gguf
import numpy as np
import pytest

from tiny_gguf import write_tiny_gguf
from tiny_model import VARIANTS, write_hf

PLAIN = [name for name, v in VARIANTS.items() if "layout" not in v]
QUANTISED = [name for name, v in VARIANTS.items() if "layout" in v]


def tensors(path):
    return {t.name: (t.tensor_type.name, t.shape.tolist(), t.data.tobytes()) for t in gguf.GGUFReader(path).tensors}


def entries(path):
    reader = gguf.GGUFReader(path)
    return {n: (f.types, f.contents()) for n, f in reader.fields.items() if not n.startswith("GGUF.")}


@pytest.mark.parametrize("name", PLAIN)
@pytest.mark.parametrize("shards", [1, 3])
def test_tensors_and_keys_of_llama_cpp(sparkinfer, tmp_path, name, shards):
    v = VARIANTS[name]
    write_hf(v, tmp_path / "folder", shards=shards)
    write_tiny_gguf(v, tmp_path / "golden.gguf")
    sparkinfer("convert", tmp_path / "folder", tmp_path / "ours.gguf")
    ours, golden = tensors(tmp_path / "ours.gguf"), tensors(tmp_path / "golden.gguf")
    assert sorted(ours) == sorted(golden)
    for tensor, found in ours.items():
        assert found == golden[tensor], tensor
    found, expected = entries(tmp_path / "ours.gguf"), entries(tmp_path / "golden.gguf")
    assert found.pop("general.name")[1] == "folder" and expected.pop("general.name")
    assert found == expected


@pytest.mark.parametrize("name", QUANTISED)
def test_quantised_layouts_keep_their_values(sparkinfer, tmp_path, name):
    write_hf(VARIANTS[name], tmp_path / "folder")
    out = tmp_path / "ours.gguf"
    assert "F32" in sparkinfer("convert", tmp_path / "folder", out).stderr
    np.save(tmp_path / "ids.npy", (np.arange(40) * 37 % 512).astype(np.int32))
    logits = []
    for model in (tmp_path / "folder", out):
        arguments = ["--tokens", tmp_path / "ids.npy", "--logits-out", tmp_path / "logits.npy"]
        sparkinfer("perplexity", model, *arguments)
        logits.append(np.load(tmp_path / "logits.npy").astype(np.float64))
    # The same values; a matrix decoded ahead is summed in another order.
    assert np.linalg.norm(logits[0] - logits[1]) < 1e-4 * np.linalg.norm(logits[0])
