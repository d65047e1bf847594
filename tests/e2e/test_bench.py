"""Risk: bench's result rows, parallel sequences or its comparison with llama-bench say something that is not so."""

import hashlib
import json
import os
import re
import statistics
import sys

import pytest

ROW = ["model", "file_sha256", "backend", "n_depth", "n_prompt", "n_gen", "n_parallel", "kv", "state", "activations", "tok_s", "median",
       "sm_mhz", "temp_c", "commit", "command"]  # fmt: skip

# Stands for llama-bench: answers as it does and keeps a list of what it was asked.
FAKE = """#!{python}
import json, os, sys
arguments = dict(zip(sys.argv[1::2], sys.argv[2::2]))
with open({log!r}, "a") as log:
    log.write(json.dumps(arguments) + "\\n")
if os.path.exists({broken!r}):
    sys.exit("error: failed to load the model\\n")
print(json.dumps([{{"build_commit": "fade123", "backends": "CPU", "type_k": "f16", "n_prompt": int(arguments["-p"]),
    "n_gen": int(arguments["-n"]), "n_depth": int(arguments.get("-d", 0)), "avg_ts": 12.5}}]))
"""


@pytest.fixture
def llama_bench(tmp_path):
    """(program, function that gives what it was asked so far, file that makes it fail)"""
    log, broken, program = tmp_path / "asked.jsonl", tmp_path / "broken", tmp_path / "llama-bench"
    program.write_text(FAKE.format(python=sys.executable, log=str(log), broken=str(broken)))
    program.chmod(0o755)
    return program, lambda: [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else [], broken


def rows_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_result_rows_are_appended(execute, tiny, tmp_path):
    results = tmp_path / "results.jsonl"
    command = ["bench", tiny, "-p", "16", "-n", "4", "-d", "0,32", "-r", "3", "-t", "1", "--jsonl", results]
    code, out, err = execute(*command, "--sha256")
    assert code == 0, err.decode()
    assert b"SHA-256" in err, "reading a whole file is announced"
    assert execute(*command, "--label", "35b")[0] == 0
    rows = rows_of(results)
    assert [(r["n_prompt"], r["n_gen"], r["n_depth"]) for r in rows] == [(16, 0, 0), (0, 4, 0), (16, 0, 32), (0, 4, 32)] * 2
    for r in rows:
        assert list(r)[: len(ROW)] == ROW
        assert len(r["tok_s"]) == 3 and r["median"] == statistics.median(r["tok_s"])
        assert (r["backend"], r["kv"], r["n_parallel"]) == ("cpu", "f32", 1)
        assert r["activations"] in ("int16", "f32"), "f32 only where the processor lacks the instructions"
        assert r["sm_mhz"] is None and r["temp_c"] is None
        assert r["commit"] and r["command"].startswith("sparkinfer bench ") and str(results) in r["command"]
    assert {r["model"] for r in rows[:4]} == {tiny.stem} and {r["model"] for r in rows[4:]} == {"35b"}
    assert {r["file_sha256"] for r in rows[:4]} == {hashlib.sha256(tiny.read_bytes()).hexdigest()}
    assert {r["file_sha256"] for r in rows[4:]} == {None}


def test_a_results_file_that_cannot_be_written_stops_it_at_once(refused, tiny, tmp_path):
    message = refused(4, "bench", tiny, "--jsonl", tmp_path / "none" / "r.jsonl")
    assert "none/r.jsonl: cannot open: No such file or directory" in message


def test_parallel_sequences_share_weights_and_not_their_keys(execute, tiny):
    base = ["bench", tiny, "-p", "0", "-n", "8", "-d", "700", "-r", "2", "-t", "1", "-o", "json"]
    code, out, err = execute(*base, "-np", "1,3")
    assert code == 0, err.decode()
    one, three = json.loads(out)
    assert (one["n_parallel"], three["n_parallel"]) == (1, 3)
    assert three["samples_ts"] == pytest.approx([3 * 8 * 1e9 / ns for ns in three["samples_ns"]])
    weights = json.loads(execute(*base[:6], "-d", "0", "-r", "1", "-t", "1", "-o", "json")[1])[0]["bytes"]
    keys = one["bytes"] - weights    # of 700 tokens, 8 times
    # Two more sequences bring their keys and values, two embedding rows a step, and nothing else.
    assert three["bytes"] - one["bytes"] == pytest.approx(2 * keys, rel=0.05)


@pytest.mark.parametrize("arguments", [["-np", "2"], ["-np", "5", "-d", "128"], ["-np", "8,2", "-d", "0,448"]])
def test_parallel_sequences_are_all_live_at_once(execute, tiny, arguments):
    """However few pages their contexts take; bench itself refuses a run in which one had ended before another began."""
    code, out, err = execute("bench", tiny, "-p", "0", "-n", "32", "-r", "1", "-t", "1", "-o", "json", *arguments)
    assert code == 0, err.decode()
    assert all(row["samples_ns"][0] > 1 for row in json.loads(out))


def test_compare_runs_the_peer_in_turns(execute, tiny, tmp_path, llama_bench):
    program, asked, _ = llama_bench
    results = tmp_path / "results.jsonl"
    command = ["bench", tiny, "-p", "32", "-n", "4", "-d", "0,64", "-r", "3", "-t", "1", "--compare", program]
    code, out, err = execute(*command, "-o", "json", "--jsonl", results)
    assert code == 0, err.decode()
    expected = [("32", "0", None), ("0", "4", None), ("32", "0", "64"), ("0", "4", "64")]
    assert [(a["-p"], a["-n"], a.get("-d")) for a in asked()] == [test for test in expected for _ in range(3)]
    assert all(a["-m"] == str(tiny) and (a["-t"], a["-ngl"], a["-r"], a["-o"]) == ("1", "0", "1", "json") for a in asked())
    for row in json.loads(out):
        assert row["peer_samples_ts"] == [12.5] * 3 and row["peer_backends"] == "CPU" and row["peer_commit"] == "fade123"
        ratios = [ts / 12.5 for ts in row["samples_ts"]]
        assert [row["ratio"], row["ratio_min"], row["ratio_max"]] == pytest.approx(
            [statistics.median(ratios), min(ratios), max(ratios)])  # fmt: skip
    rows = rows_of(results)
    assert [r["backend"] for r in rows] == ["cpu", "llama.cpp CPU"] * 4
    assert rows[1]["commit"] == "fade123" and rows[1]["median"] == 12.5 and str(program) in rows[1]["command"]
    markdown = execute(*command)[1].decode().splitlines()
    assert len(markdown) == 2 + 3 * 4
    assert re.search(r"\| llama\.cpp +\|.*\| +12\.50 ± 0\.00 \|", markdown[3]) and "| ratio " in markdown[4]


def test_a_peer_that_fails_is_named(execute, refused, tiny, tmp_path, llama_bench):
    program, _, broken = llama_bench
    broken.write_text("")
    base = ["bench", tiny, "-p", "16", "-n", "0", "-r", "1", "-o", "csv", "--compare"]
    assert refused(3, *base, program) == f"{program}: ended with exit code 1: error: failed to load the model"
    assert "cannot be started: No such file or directory" in refused(3, *base, tmp_path / "none")
    assert "answered" in refused(3, *base, "echo") or "JSON" in refused(3, *base, "echo")
    assert "one sequence at a time" in refused(2, *base, program, "-np", "2")
