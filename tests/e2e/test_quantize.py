"""Risk: `quantize` loses its input, leaves half a file, or fails with words that do not help."""

import os
import resource
import shutil
import signal
import struct
import subprocess
import time

import gguf
import numpy as np
import pytest


def left_over(folder):
    return sorted(path.name for path in folder.iterdir())



def test_the_result_runs_and_is_what_the_dry_run_said(sparkinfer, run_json, tiny, tmp_path):
    out = tmp_path / "out.gguf"
    dry = sparkinfer("quantize", tiny, out, "q4_k_m", "--dry-run").stdout
    assert left_over(tmp_path) == []
    done = sparkinfer("quantize", tiny, out, "Q4_K_M")
    assert left_over(tmp_path) == ["out.gguf"]
    assert done.stdout == "" and "bits a weight" in done.stderr
    for tensor in gguf.GGUFReader(out).tensors:
        line = next(line for line in dry.splitlines() if line.startswith(tensor.name + " "))
        assert f"-> {tensor.tensor_type.name} " in line and line.endswith(f" {tensor.n_bytes} bytes")
    assert len(run_json(out, "the engine", 8)["token_ids"]) == 8


def test_rows_that_do_not_divide_say_what_would_be_smaller(sparkinfer, smollm2, tiny, tmp_path):
    """SmolLM2's rows have 576 values: Q4_K_M of it is larger than Q4_1."""
    model = tmp_path / "model.gguf"
    sparkinfer("quantize", smollm2, model, "Q8_0", "--requantize")
    for dry in ([], ["--dry-run"]):
        told = sparkinfer("quantize", model, tmp_path / "k.gguf", "Q4_K_M", "--requantize", *dry).stderr
        assert "have rows that do not divide into blocks of 256 weights and got a type of more bits; Q4_1 would be smaller" in told
    sparkinfer("quantize", model, tmp_path / "1.gguf", "Q4_1", "--requantize")
    size = float(told.split("would be smaller: ")[1].split(" MB")[0]) * 1e6
    assert 0 < (tmp_path / "1.gguf").stat().st_size - size < 4e6, "the tensors of the file"
    assert (tmp_path / "1.gguf").stat().st_size < (tmp_path / "k.gguf").stat().st_size
    assert "do not divide" not in sparkinfer("quantize", tiny, tmp_path / "t.gguf", "Q4_K_M").stderr


def test_threads_do_not_change_the_bytes(sparkinfer, tiny, tmp_path):
    for threads in (1, 3):
        sparkinfer("quantize", tiny, tmp_path / f"{threads}.gguf", "Q5_K_M", "-t", threads)
    assert (tmp_path / "1.gguf").read_bytes() == (tmp_path / "3.gguf").read_bytes()


def test_a_link_to_out_stays_a_link(sparkinfer, tiny, tmp_path):
    (tmp_path / "old.gguf").write_bytes(b"old")
    (tmp_path / "link.gguf").symlink_to("old.gguf")
    sparkinfer("quantize", tiny, tmp_path / "link.gguf", "Q8_0")
    assert (tmp_path / "link.gguf").is_symlink()
    assert (tmp_path / "old.gguf").read_bytes()[:4] == b"GGUF"


@pytest.mark.parametrize("way", ["same", "relative", "symlink", "hardlink"])
def test_never_onto_the_input(refused, tiny, tmp_path, way):
    source, out = tmp_path / "in.gguf", tmp_path / "in.gguf"
    shutil.copy(tiny, source)
    before = source.read_bytes()
    if way == "relative":
        out = f"{tmp_path}/../{tmp_path.name}/in.gguf"
    elif way == "symlink":
        out = tmp_path / "link.gguf"
        out.symlink_to(source)
    elif way == "hardlink":
        out = tmp_path / "hard.gguf"
        os.link(source, out)
    assert "input" in refused(2, "quantize", source, out, "Q8_0")
    assert source.read_bytes() == before
    assert [name for name in left_over(tmp_path) if "tmp" in name] == []


def test_words_that_are_off(refused, tiny, tmp_path):
    out = tmp_path / "out.gguf"
    assert "Q9_Z" in refused(2, "quantize", tiny, out, "Q9_Z")
    assert "missing" in refused(3, "quantize", tiny, tmp_path / "missing" / "out.gguf", "Q8_0")
    assert "nothere" in refused(3, "quantize", tmp_path / "nothere.gguf", out, "Q8_0")
    assert str(tmp_path) in refused(3, "quantize", tiny, tmp_path, "Q8_0")
    (tmp_path / "noise").write_bytes(b"\x01\x02")
    assert "noise" in refused(3, "quantize", tiny, out, "Q8_0", "--imatrix", tmp_path / "noise")
    assert left_over(tmp_path) == ["noise"]


def test_weights_that_are_quantised_already(refused, sparkinfer, tiny, tmp_path):
    first, out = tmp_path / "first.gguf", tmp_path / "out.gguf"
    sparkinfer("quantize", tiny, first, "Q8_0")
    message = refused(3, "quantize", first, out, "Q4_0")
    assert "Q8_0" in message and "--requantize" in message and not out.exists()
    sparkinfer("quantize", first, out, "Q4_0", "--requantize")
    sparkinfer("quantize", first, out, "F32")  # decoding loses nothing
    decoded = {t.name: t for t in gguf.GGUFReader(out).tensors}
    for tensor in gguf.GGUFReader(first).tensors:
        expected = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert np.array_equal(decoded[tensor.name].data, expected), tensor.name


def test_a_disk_that_is_full(refused, tiny, tmp_path):
    """A limit on the size of a file stands for it: the error comes at the same calls."""
    out = tmp_path / "out.gguf"

    def limit():
        resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))

    assert "out.gguf" in refused(4, "quantize", tiny, out, "Q8_0", preexec_fn=limit)
    assert left_over(tmp_path) == []


def test_values_that_are_no_numbers(refused, tiny, tmp_path):
    source = tmp_path / "in.gguf"
    shutil.copy(tiny, source)
    tensor = next(t for t in gguf.GGUFReader(source).tensors if t.name == "blk.1.ffn_up.weight")
    with source.open("r+b") as file:
        file.seek(int(tensor.data_offset) + 2 * (5 * 256 + 7))
        file.write(b"\xc0\x7f")  # a BF16 NaN in row 5, column 7
    message = refused(3, "quantize", source, tmp_path / "out.gguf", "Q4_K_M")
    assert "blk.1.ffn_up.weight" in message and "row 5, column 7" in message
    assert left_over(tmp_path) == ["in.gguf"]


def test_an_interrupted_run_leaves_nothing(binary, smollm2, tmp_path):
    out = tmp_path / "out.gguf"
    running = subprocess.Popen(
        [binary, "quantize", smollm2, out, "Q4_K_M", "--requantize", "-t", "1"], stderr=subprocess.PIPE
    )
    while running.poll() is None and not left_over(tmp_path):
        time.sleep(0.01)
    running.send_signal(signal.SIGINT)
    assert running.wait(60) == 130
    assert running.stderr.read() == b""
    assert left_over(tmp_path) == []


def test_stacks_of_stacks(refused, sparkinfer, tmp_path):
    """Four dimensions: as many matrices as the outer two say, each with columns of its own in an importance matrix."""
    writer = gguf.GGUFWriter(tmp_path / "in.gguf", "llama")
    values = np.sin(np.arange(2 * 3 * 4 * 32, dtype=np.float32)).reshape(2, 3, 4, 32)
    writer.add_tensor("blk.0.odd.weight", values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    def imatrix(count):
        path, name = tmp_path / "imatrix", b"blk.0.odd.weight"
        head = struct.pack("<ii", 1, len(name)) + name + struct.pack("<ii", 1, count)
        path.write_bytes(head + np.arange(1, count + 1, dtype="<f4").tobytes())
        return path

    out = tmp_path / "out.gguf"
    message = refused(3, "quantize", tmp_path / "in.gguf", out, "Q4_0", "--imatrix", imatrix(32))
    assert "32 values" in message and "expected 192" in message and not out.exists()
    sparkinfer("quantize", tmp_path / "in.gguf", out, "Q4_0", "--imatrix", imatrix(192))
    tensor = next(iter(gguf.GGUFReader(out).tensors))
    decoded = gguf.quants.dequantize(tensor.data, tensor.tensor_type).reshape(values.shape)
    assert np.abs(decoded - values).max() < 0.2
