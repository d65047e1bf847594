"""Risk: inspect, tokenize, explain, perplexity or bench say something that is not so, or not what scripts rely on."""

import csv
import io
import json
import math
import re
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from gguf import GGUFReader

ROOT = Path(__file__).resolve().parent.parent.parent


def run(execute, *arguments, **more):
    code, out, err = execute(*arguments, **more)
    assert code == 0, err.decode()
    return out.decode()


def test_inspect_agrees_with_the_gguf_package(execute, smollm2):
    o = json.loads(run(execute, "inspect", smollm2, "--json"))
    reader = GGUFReader(smollm2)
    assert o["container"] == "GGUF" and o["file_bytes"] == smollm2.stat().st_size
    expected = {t.name: (t.tensor_type.name, [int(n) for n in reversed(t.shape)], int(t.n_bytes)) for t in reader.tensors}
    found = {t["name"]: (t["type"], t["shape"], t["bytes"]) for t in o["tensors"]}
    assert found == expected
    assert {t["type"]: t["tensors"] for t in o["types"]} == {"Q4_1": 210, "F32": 61, "Q8_0": 1}
    assert o["weights"] == sum(math.prod(shape) for _, shape, _ in expected.values())
    assert o["metadata"]["llama.context_length"] == 8192
    tokens = o["metadata"]["tokenizer.ggml.tokens"]
    assert tokens["length"] == 49152 and len(tokens["first"]) < 100
    keys = {name for name in reader.fields if not name.startswith("GGUF.")}
    assert set(o["metadata"]) == keys


def test_inspect_for_people(execute, smollm2):
    text = run(execute, "inspect", smollm2)
    assert "general.architecture = \"llama\"" in text
    assert "blk.0.attn_q.weight" in text and "Q4_1" in text and "98,362,432 bytes" in text
    assert max(map(len, text.splitlines())) < 200, "long arrays and texts are cut"


def test_inspect_does_not_read_weights(execute, tiny, tmp_path):
    """A sparse file of 20 GB: reading it would take seconds, and its tensor data is all holes."""
    from gguf import GGUFWriter, GGMLQuantizationType

    path = tmp_path / "large.gguf"
    writer = GGUFWriter(path, "llama")
    for i in range(20):
        writer.add_tensor_info(
            f"blk.{i}.ffn_up.weight", (16384, 65536), np.dtype(np.uint8), 16384 * 65536, GGMLQuantizationType.I8
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    writer.close()
    size = path.stat().st_size
    with open(path, "r+b") as file:
        file.truncate((size + 31) // 32 * 32 + 20 * 16384 * 65536)
    start = time.monotonic()
    o = json.loads(run(execute, "inspect", path, "--json"))
    assert time.monotonic() - start < 1
    assert o["tensor_bytes"] == 20 * 16384 * 65536


def test_tokenize_there_and_back(execute, smollm2):
    for text in ["Hello world", "  zwei\n\tZeilen ", "日本語 😀", "x" * 1000, "1234 don't"]:
        o = json.loads(run(execute, "tokenize", smollm2, "--json", "-p", text))
        assert list(o) == ["token_ids", "tokens"] and len(o["token_ids"]) == len(o["tokens"])
        ids = ",".join(map(str, o["token_ids"]))
        assert run(execute, "tokenize", smollm2, "--decode", ids) == text + "\n"
        assert json.loads(run(execute, "tokenize", smollm2, "--decode", ids, "--json")) == {
            "token_ids": o["token_ids"],
            "text": text,
        }
        assert json.loads(run(execute, "tokenize", smollm2, "--json", stdin=text.encode())) == o
    lines = run(execute, "tokenize", smollm2, "-p", "Hello world").splitlines()
    assert [json.loads(line.split(None, 1)[1]) for line in lines] == ["Hello", " world"]


def test_tokenize_and_control_tokens(execute, smollm2):
    text = "<|im_start|>user"
    special = json.loads(run(execute, "tokenize", smollm2, "--json", "-p", text))["token_ids"]
    plain = json.loads(run(execute, "tokenize", smollm2, "--json", "--no-special", "-p", text))["token_ids"]
    assert len(special) == 2 and len(plain) > 4


def test_a_megabyte_of_one_character_is_quick(execute, smollm2):
    start = time.monotonic()
    o = json.loads(run(execute, "tokenize", smollm2, "--json", stdin=b"a" * 1_000_000))
    assert time.monotonic() - start < 3
    assert o["token_ids"]


def test_explain_counts_the_weights(execute, smollm2):
    text = run(execute, "explain", smollm2)
    rows = [line.split() for line in text.splitlines() if re.match(r" *\d+  ", line)]
    assert [int(row[0]) for row in rows] == list(range(len(rows)))
    ops = [row[1] for row in rows]
    assert ops == ["embed", *(["norm_linear", "attention", "linear_add", "linear_glu", "linear_add"] * 30), "output"]
    total = sum(int(row[-3]) for row in rows)
    stated = int(re.search(r"total  (\d+) bytes", text)[1])
    assert abs(stated - total) <= len(rows)
    # Every tensor once, but of the embedding also one row; and the first token's keys and values, in BF16.
    tensors = json.loads(run(execute, "inspect", smollm2, "--json"))["tensor_bytes"]
    kv = 30 * 2 * 3 * 64 * 2
    row = 576 // 32 * 34
    frequencies = 30 * 32 * 4
    assert stated == tensors + row + kv + frequencies
    floors = {gpu: floor_of(run(execute, "explain", smollm2, "--gpu", gpu)) for gpu in ["h200", "rtx5090", "pro6000", "spark"]}
    assert floors["h200"] == pytest.approx(stated / 4.5e12 * 1e6, abs=0.01)
    assert floors["spark"] > floors["rtx5090"] == floors["pro6000"] > floors["h200"]
    deep = run(execute, "explain", smollm2, "--depth", "1000")
    assert int(re.search(r"total  (\d+) bytes", deep)[1]) == stated + 1000 * kv
    assert "8192" in execute("explain", smollm2, "--depth", "8192")[2].decode()


def floor_of(text):
    return float(re.search(r"floor  ([\d.]+) µs", text)[1])


@pytest.fixture(scope="module")
def logits(execute, tiny, tmp_path_factory):
    """Ids, their logits by the binary, and what it printed."""
    folder = tmp_path_factory.mktemp("logits")
    ids = np.random.default_rng(1).integers(0, 512, 150)
    np.save(folder / "ids.npy", ids)
    out = run(execute, "perplexity", tiny, "--tokens", folder / "ids.npy", "--logits-out", folder / "out.npy")
    assert sorted(path.name for path in folder.iterdir()) == ["ids.npy", "out.npy"]
    return ids, np.load(folder / "out.npy"), out


def negative_log_probabilities(logits, ids):
    """Of ids[i + 1] by logits[i]."""
    x = logits[:-1].astype(np.float64)
    x = x - x.max(axis=1, keepdims=True)
    return np.log(np.exp(x).sum(axis=1)) - x[np.arange(len(x)), ids[1:]]


def estimate_of(text):
    found = re.search(r"Final estimate: PPL = ([\d.]+) \+/- ([\d.]+)", text)
    return float(found[1]), float(found[2])


def test_logits_of_every_token(logits):
    ids, array, out = logits
    assert array.shape == (150, 512) and array.dtype == np.float32
    nll = negative_log_probabilities(array, ids)
    perplexity, error = estimate_of(out)
    assert perplexity == pytest.approx(math.exp(nll.mean()), rel=1e-4)
    assert error == pytest.approx(math.exp(nll.mean()) * nll.std() / math.sqrt(len(nll) - 1), rel=1e-2)


def test_logits_in_windows_are_those_of_fresh_sequences(execute, tiny, logits, tmp_path):
    ids, whole, _ = logits
    for dtype in [np.int32, np.int64]:
        np.save(tmp_path / "ids.npy", ids[:100].astype(dtype))
        run(execute, "perplexity", tiny, "--tokens", tmp_path / "ids.npy", "--ctx", "64", "--logits-out", tmp_path / "o.npy")
        cut = np.load(tmp_path / "o.npy")
        assert cut.shape == (100, 512)
        assert np.array_equal(cut[:64], whole[:64]), "the first window is the start of the whole"
        assert not np.array_equal(cut[64:], whole[64:100])
    np.save(tmp_path / "ids.npy", ids[64:100])
    run(execute, "perplexity", tiny, "--tokens", tmp_path / "ids.npy", "--logits-out", tmp_path / "p.npy")
    assert np.array_equal(np.load(tmp_path / "p.npy"), cut[64:])


def test_types_that_keys_and_values_are_kept_in(execute, tiny, logits, tmp_path):
    """An option that is read but not used, or used for both types alike."""
    ids, exact, _ = logits
    np.save(tmp_path / "ids.npy", ids)
    error = {}
    for kv in ["f32", "bf16", "fp8"]:
        run(
            execute, "perplexity", tiny, "--tokens", tmp_path / "ids.npy", "--backend", "cpu", "--kv", kv,
            "--logits-out", tmp_path / "kv.npy",
        )
        error[kv] = np.linalg.norm(np.load(tmp_path / "kv.npy") - exact) / np.linalg.norm(exact)
    assert error["f32"] == 0
    assert 0 < error["bf16"] < error["fp8"] / 4 < 0.1
    rows = json.loads(run(execute, "bench", tiny, "-p", 0, "-n", 2, "-r", 1, "--kv", "fp8", "-o", "json"))
    assert (rows[0]["type_kv"], rows[0]["type_state"]) == ("fp8", "f32")
    assert "KV FP8" in run(execute, "explain", tiny, "--kv", "fp8").splitlines()[0]


def test_perplexity_of_a_text_is_llama_perplexitys_arithmetic(execute, tiny, tmp_path):
    """Windows of --ctx, second half of each rated, the rest of the text left out."""
    text = "The quick brown fox jumps over the lazy dog. " * 12
    (tmp_path / "text.txt").write_text(text)
    ids = np.array(json.loads(run(execute, "tokenize", tiny, "--json", "--no-special", "-p", text))["token_ids"])
    window = 64
    assert len(ids) >= 2 * window
    out = run(execute, "perplexity", tiny, "-f", tmp_path / "text.txt", "--ctx", window, "--logits-out", tmp_path / "o.npy")
    rated, running = [], []
    logits = np.load(tmp_path / "o.npy")
    assert logits.shape == (len(ids), 512)
    for start in range(0, len(ids) - window + 1, window):
        nll = negative_log_probabilities(logits[start : start + window], ids[start : start + window])
        rated += list(nll[window // 2 :])
        running.append(math.exp(np.mean(rated)))
    perplexity, error = estimate_of(out)
    assert perplexity == pytest.approx(running[-1], rel=1e-4)
    rated = np.array(rated)
    assert error == pytest.approx(running[-1] * rated.std() / math.sqrt(len(rated) - 1), rel=1e-2)
    printed = [float(x) for x in re.findall(r"\[\d+\]([\d.]+),", out)]
    assert printed == pytest.approx(running, rel=1e-4)
    assert "expected at least" in execute("perplexity", tiny, "-f", tmp_path / "text.txt", "--ctx", "512")[2].decode()


LLAMA_BENCH_FIELDS = {
    "cpu_info", "gpu_info", "backends", "model_filename", "model_type", "model_size", "model_n_params", "n_batch", "n_threads",
    "n_prompt", "n_gen", "n_depth", "test_time", "avg_ns", "stddev_ns", "avg_ts", "stddev_ts",
}  # fmt: skip
OUR_FIELDS = {
    "n_parallel", "type_kv", "type_state", "activations", "median_ts", "min_ts", "max_ts", "sm_mhz", "temp_c", "bytes", "read_bandwidth",
    "floor_percent", "samples_ns", "samples_ts",
}  # fmt: skip


def test_bench_rows(execute, tiny):
    base = ["bench", tiny, "-p", "64,128", "-n", "8", "-d", "0,100", "-r", "2", "-t", "1"]
    rows = json.loads(run(execute, *base, "-o", "json"))
    assert [(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in rows] == [
        (64, 0, 0), (128, 0, 0), (0, 8, 0), (64, 0, 100), (128, 0, 100), (0, 8, 100)]  # fmt: skip
    for r in rows:
        assert set(r) == LLAMA_BENCH_FIELDS | OUR_FIELDS
        assert len(r["samples_ns"]) == len(r["samples_ts"]) == 2
        tokens = r["n_prompt"] + r["n_gen"]
        speeds = [tokens * 1e9 / ns for ns in r["samples_ns"]]
        assert r["avg_ts"] == pytest.approx(np.mean(speeds)) and r["stddev_ts"] == pytest.approx(np.std(speeds, ddof=1))
        assert r["median_ts"] == pytest.approx(np.median(speeds))
        assert [r["min_ts"], r["max_ts"]] == pytest.approx([min(speeds), max(speeds)])
        assert r["sm_mhz"] is None and r["temp_c"] is None and r["gpu_info"] == "", "no GPU computes"
        assert r["avg_ns"] == pytest.approx(np.mean(r["samples_ns"]), abs=1)
        floor = r["bytes"] / r["read_bandwidth"] / (np.mean(r["samples_ns"]) * 1e-9)
        assert r["floor_percent"] == pytest.approx(100 * floor, rel=1e-3)
        assert r["read_bandwidth"] > 1e8 and r["n_threads"] == 1
    assert rows[5]["bytes"] - rows[2]["bytes"] == 8 * 100 * (3 * 2 * 2 * 64 * 4), "the keys and values of the depth"


def test_bench_formats(execute, tiny):
    base = ["bench", tiny, "-p", "16", "-n", "2", "-r", "1", "-t", "1"]
    lines = run(execute, *base, "-o", "jsonl").splitlines()
    assert [json.loads(line)["n_prompt"] for line in lines] == [16, 0]
    table = list(csv.DictReader(io.StringIO(run(execute, *base, "-o", "csv"))))
    assert len(table) == 2 and LLAMA_BENCH_FIELDS <= set(table[0]) and table[1]["n_gen"] == "2"
    markdown = run(execute, *base).splitlines()
    header = [cell.strip() for cell in markdown[0].strip("|").split("|")]
    assert header[:7] == ["model", "size", "params", "backend", "threads", "test", "t/s"]
    assert [line.split("|")[6].strip() for line in markdown[2:4]] == ["pp16", "tg2"]
    only = run(execute, "bench", tiny, "-p", "0", "-n", "2", "-d", "32", "-r", "1").splitlines()
    assert len(only) == 3 and "tg2 @ d32" in only[2]
    assert "1024" in execute("bench", tiny, "-p", "1024", "-n", "0")[2].decode()


@pytest.mark.parametrize("variant", ["qwen3", "qwen3moe", "qwen35-r3", "qwen35moe"])
def test_tapes_of_every_architecture_are_valid(execute, variant, tmp_path):
    """explain proves its tape before it prints; one row of experts is billed for those it uses, not for all."""
    make = [sys.executable, str(ROOT / "tools" / "make_tiny_model.py"), variant]
    subprocess.run([*make, "--gguf", str(tmp_path / "m.gguf"), "--hf", str(tmp_path / "hf")], check=True, capture_output=True)
    totals = {}
    for model in ["m.gguf", "hf"]:
        for rows in [1, 5, 200]:
            text = run(execute, "explain", tmp_path / model, "--rows", rows)
            totals[model, rows] = int(re.search(r"total  (\d+) bytes", text)[1])
            assert re.search(r"\d+ +output", text)
        assert totals[model, 1] < totals[model, 5] < totals[model, 200]
        assert ("moe_glu" in text) == ("moe" in variant)
        assert ("gated_delta" in text) == ("qwen35" in variant)
    # (The containers keep a few vectors in other float types.)
    assert totals["m.gguf", 1] == pytest.approx(totals["hf", 1], rel=0.05)
