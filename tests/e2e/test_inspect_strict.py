"""Risk: `inspect --strict` is silent about a file that is damaged, or cries at one that is not."""

import json
import shutil
import struct

import gguf
import pytest
from gguf_edit import Gguf


def strict(execute, path):
    code, out, err = execute("inspect", "--strict", path)
    assert code in (0, 1) and err == b"", err
    lines = out.decode().splitlines()
    if code == 0:
        assert len(lines) == 1 and "nothing suspicious" in lines[0]
        return []
    assert lines
    return lines


@pytest.fixture
def copy(tiny, tmp_path):
    path = tmp_path / "copy.gguf"
    shutil.copy(tiny, path)
    return path


def tensor(path, name):
    return next(t for t in gguf.GGUFReader(path).tensors if t.name == name)


def overwrite(path, name, data, skip=0):
    at = int(tensor(path, name).data_offset) + skip
    with path.open("r+b") as file:
        file.seek(at)
        file.write(data)


def test_nothing_is_wrong_with_real_files(execute, smollm2, tiny):
    assert strict(execute, smollm2) == []
    assert strict(execute, tiny) == []


def test_values(execute, copy):
    overwrite(copy, "blk.0.ffn_up.weight", b"\xc0\x7f" * 3, skip=2 * 1000)  # BF16 NaN
    size = int(tensor(copy, "blk.1.attn_k.weight").n_bytes)
    overwrite(copy, "blk.1.attn_k.weight", bytes(size))
    twin = tensor(copy, "blk.2.attn_v.weight").data.tobytes()
    overwrite(copy, "blk.0.attn_v.weight", twin)
    lines = strict(execute, copy)
    assert len(lines) == 3
    assert any("'blk.0.ffn_up.weight': 3 of " in line and "first at 1000" in line for line in lines)
    assert any("'blk.1.attn_k.weight': all " in line for line in lines)
    assert any("blk.0.attn_v.weight" in line and "blk.2.attn_v.weight" in line for line in lines)


def test_scales_of_quantised_blocks(execute, sparkinfer, tiny, tmp_path):
    path = tmp_path / "q4.gguf"
    sparkinfer("quantize", tiny, path, "Q4_K_M")
    name = next(t.name for t in gguf.GGUFReader(path).tensors if t.tensor_type.name == "Q4_K")
    overwrite(path, name, b"\x00\x7c", skip=144 * 5)  # d of block 5 is infinite
    lines = strict(execute, path)
    assert len(lines) == 1 and name in lines[0] and "not finite" in lines[0]


def test_bytes_that_belong_to_nothing(execute, copy):
    with copy.open("ab") as file:
        file.write(bytes(1000))
    lines = strict(execute, copy)
    assert len(lines) == 1 and "1000 bytes behind" in lines[0]


def test_metadata(execute, tiny, tmp_path):
    file = Gguf(tiny)
    file.set("tokenizer.ggml.padding_token_id", struct.pack("<II", 4, 5120))
    file.set("general.file_type", struct.pack("<II", 4, 15))
    path = file.write(tmp_path / "edited.gguf")
    text = "\n".join(strict(execute, path))
    assert "padding_token_id" in text and "5120" in text
    assert "Q4_K_M" in text


def test_a_model_that_cannot_be_loaded(execute, tiny, tmp_path):
    file = Gguf(tiny)
    file.tensors = [entry for entry in file.tensors if entry[0] != "blk.1.ffn_down.weight"]
    path = file.write(tmp_path / "edited.gguf")
    lines = strict(execute, path)
    assert any("blk.1.ffn_down" in line and "missing" in line for line in lines)


def test_json(execute, tiny, copy):
    with copy.open("ab") as file:
        file.write(bytes(64))
    for path, count in ((tiny, 0), (copy, 1)):
        code, out, _ = execute("inspect", "--strict", "--json", path)
        assert code == count and len(json.loads(out)["suspicious"]) == count
