"""Risk: a comparison of backends that says nothing, or blames the wrong side; figures of explain that are not measured."""

import re

import pytest

PROMPT = "The quick brown fox jumps over the lazy dog. " * 6


def test_a_backend_does_not_differ_from_itself(execute, tiny):
    code, out, err = execute("diff", tiny, "cpu", "cpu", "-p", PROMPT, "-n", "3", "--chunk", "32")
    assert code == 0, err.decode()
    text = out.decode()
    tokens = int(re.search(r"(\d+) prompt tokens, 32 a step, then 3 steps", text)[1])
    steps, ops = map(int, re.search(r"no difference: (\d+) steps, (\d+) ops compared", text).groups())
    assert tokens > 64 and steps == -(-tokens // 32) + 3
    explained = execute("explain", tiny)[1].decode()
    assert ops == steps * int(re.search(r"(\d+) instructions", explained)[1])
    assert set(re.findall(r"^(\w+) +equal$", text, re.M)) == {
        "embed", "norm_linear", "attention", "linear_add", "linear_glu", "output"}  # fmt: skip


def test_the_prompt_may_come_from_stdin_and_decoding_may_be_left_out(execute, tiny):
    code, out, _ = execute("diff", tiny, "cpu", "cpu", "-n", "0", stdin=b"Hello world")
    assert code == 0 and b"no difference: 1 steps" in out


def test_what_cannot_be_compared(refused, tiny):
    sentence = "this build has no CUDA backend; configure with -DSPARKINFER_CUDA=ON"
    for backends in [("cpu", "cuda"), ("cuda:op", "cuda:graph"), ("cuda:op", "cpu")]:
        assert sentence in refused(2, "diff", tiny, *backends, "-p", "x"), backends
    assert "expected cpu, cuda, cuda:op or cuda:graph" in refused(2, "diff", tiny, "cpu", "gpu", "-p", "x")
    assert "context of 1024" in refused(3, "diff", tiny, "cpu", "cpu", "-p", "x " * 2000)
    assert "context of 1024" in refused(3, "diff", tiny, "cpu", "cpu", "-p", "x", "-n", "1024")
    assert "empty" in refused(3, "diff", tiny, "cpu", "cpu", "-p", "")


def rows_of(text):
    return [line.split() for line in text.splitlines() if re.match(r" *\d+  ", line)]


@pytest.mark.parametrize("arguments", [(), ("--rows", "5", "--depth", "70")])
def test_explain_measures_on_the_cpu(execute, tiny, arguments):
    code, out, err = execute("explain", tiny, "--measured", "--backend", "cpu", "-t", "1", *arguments)
    assert code == 0, err.decode()
    text = out.decode()
    rows = rows_of(text)
    assert len(rows) == 17 and all(row[-4:-2] == ["reference", "1"] for row in rows)
    microseconds = [float(row[-2]) for row in rows]
    assert all(us > 0 for us in microseconds)
    total, percent = map(float, re.search(r"measured  ([\d.]+) µs a step.*: ([\d.]+) % of", text).groups())
    assert total == pytest.approx(sum(microseconds), abs=0.01 * len(rows))
    floor = float(re.search(r"floor  ([\d.]+) µs", text)[1])
    assert percent == pytest.approx(100 * floor / total, abs=0.1)
    # The floor counts the cache as this backend keeps it, in F32, at the bandwidth that is named.
    assert "KV F32" in text
    bandwidth = int(re.search(r"total  (\d+) bytes", text)[1]) / floor  # bytes a µs
    assert float(re.search(r"memory, ([\d.]+) GB/s", text)[1]) == pytest.approx(bandwidth * 1e-3, abs=0.06)
    for row in [row for row in rows if float(row[-2]) > 1]:
        percent = 100 * int(row[-7]) / bandwidth / float(row[-2])
        assert float(row[-1]) == pytest.approx(percent, rel=0.05, abs=0.2)


def test_explain_names_kernels(execute, refused, tiny):
    text = execute("explain", tiny, "--backend", "cpu")[1].decode()
    assert "kernels: cpu" in text and "kernels  17 launches a step" in text and "% floor" not in text
    plain = execute("explain", tiny)[1].decode()
    assert [row[:-2] for row in rows_of(text)] == rows_of(plain)
    assert "no CUDA backend" in refused(2, "explain", tiny, "--backend", "cuda")
    assert "no CUDA backend" in refused(2, "explain", tiny, "--backend", "cuda", "--measured")
    assert "expected cuda or cpu" in refused(2, "explain", tiny, "--backend", "auto")
