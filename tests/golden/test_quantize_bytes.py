"""`quantize` against files of llama.cpp's own quantiser, made from the same tiny models (tests/golden/quantised).

Risk: another type for a tensor than llama.cpp chooses, or other blocks, that lose more than its own.
"""

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from gguf.quants import dequantize, quantize

from goldens_quantize import BYTES, digest, write_gguf_imatrix, write_imatrix
from tiny_gguf import write_tiny_gguf
from tiny_model import VARIANTS

CASES = json.loads(BYTES.read_text())
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


@pytest.fixture(scope="session")
def imatrix(tmp_path_factory):
    """The importance matrix of a variant in the format that `write` writes, made once."""
    folder, made = tmp_path_factory.mktemp("imatrices"), {}

    def make(variant, write=write_imatrix):
        path = folder / f"{variant}.{write.__name__}"
        if path not in made:
            write(VARIANTS[variant], path)
            made[path] = True
        return path

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


@pytest.mark.parametrize("case", CASES)
def test_every_file_type(sparkinfer, source, imatrix, tmp_path, case):
    """The bytes of llama.cpp's quantiser, with an importance matrix (once in its other format too) and without."""
    variant, kind, *weighted = case.split()
    writers = [write_imatrix, *([write_gguf_imatrix] if kind == "Q4_K_M" else [])] if weighted else [None]
    for write in writers:
        options = ["--imatrix", imatrix(variant, write)] if write else []
        sparkinfer("quantize", source(variant), tmp_path / "out.gguf", kind, *options)
        assert digest(tmp_path / "out.gguf") == CASES[case], write


def test_what_an_importance_matrix_says_is_kept(sparkinfer, source, tmp_path):
    write_gguf_imatrix(VARIANTS["llama"], tmp_path / "imatrix.gguf")
    done = sparkinfer(
        "quantize", source("llama"), tmp_path / "out.gguf", "Q4_K_M", "--imatrix", tmp_path / "imatrix.gguf"
    )
    assert "not in the importance matrix" in done.stderr
    found = {name: value for name, (_, value) in entries(tmp_path / "out.gguf").items()}
    assert found["quantize.imatrix.file"] == str(tmp_path / "imatrix.gguf")
    assert found["quantize.imatrix.dataset"] == "a text" and found["quantize.imatrix.chunks_count"] == 6
    assert found["quantize.imatrix.entries_count"] > 10


def test_a_matrix_of_another_model_is_refused(sparkinfer, source, tmp_path):
    write_imatrix(VARIANTS["qwen3moe"], tmp_path / "imatrix")
    done = sparkinfer(
        "quantize", source("llama"), tmp_path / "out.gguf", "Q4_K_M", "--imatrix", tmp_path / "imatrix", code=3
    )
    assert "values for tensor" in done.stderr and not (tmp_path / "out.gguf").exists()


def test_all_pieces_of_a_split_input(sparkinfer, source, tmp_path):
    """Split by the package's own writer; the result is one file, equal to that of the whole."""
    whole = gguf.GGUFReader(source("llama"))
    writer = gguf.GGUFWriter(None, "llama", split_max_tensors=12)
    for name, field in whole.fields.items():
        if name.startswith("GGUF.") or name == "general.architecture":
            continue
        sub = field.types[1] if len(field.types) > 1 else None
        writer.add_key_value(name, field.contents(), field.types[0], sub)
    for tensor in whole.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file(tmp_path / "split.gguf")
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    pieces = sorted(tmp_path.glob("split-*.gguf"))
    assert len(pieces) == 3
    sparkinfer("quantize", pieces[0], tmp_path / "ours.gguf", "Q4_K_M")
    sparkinfer("quantize", source("llama"), tmp_path / "whole.gguf", "Q4_K_M")
    assert digest(tmp_path / "ours.gguf") == digest(tmp_path / "whole.gguf")
    assert not [name for name in entries(tmp_path / "ours.gguf") if name.startswith("split.")]
    before = pieces[1].read_bytes()
    assert "input" in sparkinfer("quantize", pieces[0], pieces[1], "Q4_K_M", code=2).stderr
    assert pieces[1].read_bytes() == before
    pieces[2].unlink()
    assert pieces[2].name in sparkinfer("quantize", pieces[0], tmp_path / "no.gguf", "Q8_0", code=3).stderr
