"""`quantize` against files of llama.cpp's own quantiser, made from the same tiny models (tests/golden/quantised).

Risk: another type for a tensor than llama.cpp chooses, or other blocks, that lose more than its own.
"""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from tiny_gguf import write_tiny_gguf
from tiny_model import VARIANTS

GOLDEN = Path(__file__).resolve().parent / "quantised"
# Those whose types llama.cpp chose alone, without exceptions on its command line.
CHOSEN = [path.parent.name for path in sorted(GOLDEN.glob("*/manifest.json"))
          if not json.loads(path.read_text())["exceptions"]]  # fmt: skip


def tensors(path):
    return {t.name: t for t in gguf.GGUFReader(path).tensors}


def entries(path):
    reader = gguf.GGUFReader(path)
    return {
        name: (field.types, field.contents())
        for name, field in reader.fields.items()
        if not name.startswith("GGUF.")
    }


@pytest.fixture(scope="session")
def source(tmp_path_factory):
    """The BF16 GGUF of a variant, made once."""
    folder, made = tmp_path_factory.mktemp("sources"), {}

    def make(variant):
        if variant not in made:
            made[variant] = folder / f"{variant}.gguf"
            write_tiny_gguf(VARIANTS[variant], made[variant])
        return made[variant]

    return make


def test_there_are_goldens_to_compare_with():
    assert len(CHOSEN) >= 3


@pytest.mark.parametrize("arch", CHOSEN)
def test_types_and_bytes_of_llama_cpp(sparkinfer, source, tmp_path, arch):
    manifest = json.loads((GOLDEN / arch / "manifest.json").read_text())
    original, out = source(manifest["variant"]), tmp_path / "out.gguf"
    sparkinfer("quantize", original, out, manifest["base"])
    ours, theirs = tensors(out), tensors(GOLDEN / f"{arch}.gguf")
    assert {n: t.tensor_type.name for n, t in ours.items()} == {n: t.tensor_type.name for n, t in theirs.items()}
    assert entries(out) == entries(GOLDEN / f"{arch}.gguf")
    for name, tensor in ours.items():
        assert np.array_equal(tensor.data, theirs[name].data), name


@pytest.mark.parametrize("kind", ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"])
def test_bytes_where_the_format_decides(sparkinfer, source, tmp_path, kind):
    """Rows of 256 values: no fallback; the package's own quantisation is the oracle."""
    original, out = source("qwen3"), tmp_path / "out.gguf"
    sparkinfer("quantize", original, out, kind)
    exact, seen = tensors(original), 0
    for name, tensor in tensors(out).items():
        if tensor.tensor_type.name != kind:
            continue
        rows = dequantize(exact[name].data, exact[name].tensor_type)
        assert np.array_equal(tensor.data, quantize(rows, tensor.tensor_type)), name
        seen += 1
    assert seen > 10
