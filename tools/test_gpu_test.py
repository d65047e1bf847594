"""What tools/test_gpu.py makes of a binary that passes, fails, dies, hangs or has nothing to run."""

import argparse
import os

import pytest

import test_gpu

BINARY = """#!/bin/sh
case "$GTEST_SHARD_INDEX" in
0) echo '[  PASSED  ] 3 tests.'; echo '[==========] 3 tests from 1 test suite ran. (1 ms total)';;
1) echo '[  FAILED  ] A/B.c/d, where GetParam() = 7 (12 ms)'; echo 'a check failed'; exit 134;;
2) sleep 60;;
esac
"""


@pytest.fixture
def runner(tmp_path):
    binary = tmp_path / "gpu_test"
    binary.write_text(BINARY)
    binary.chmod(0o755)
    return test_gpu.Runner(argparse.Namespace(binary=binary, logs=tmp_path / "logs", jobs=1))


def test_what_passes_is_counted(runner):
    assert runner.run("part", [], 30)[0]
    assert (runner.passed, runner.failed) == (3, [])


def test_failures_deaths_and_hangs_are_named(runner):
    good, text = runner.run("part", [], 2, jobs=3)
    assert not good and "a check failed" in text and runner.passed == 3
    named, died, hung = runner.failed
    assert named.startswith("A/B.c/d (")
    assert died.endswith("exit code 134: a check failed") and hung.endswith("not done after 2 s")


def test_nothing_to_run_is_a_failure(runner):
    runner.binary.write_text("#!/bin/sh\nexit 0\n")
    assert not runner.run("part", [], 30)[0]
    assert runner.failed == ["part: no test was run"]


def test_sanitizing_wants_a_clean_summary_and_every_variant(runner, tmp_path, monkeypatch, capsys):
    tool = tmp_path / "compute-sanitizer"
    tool.write_text(
        "#!/bin/sh\necho '[  PASSED  ] 3 tests.'\necho '========= ERROR SUMMARY: 0 errors'\n"
        "echo '========= RACECHECK SUMMARY: 1 hazard displayed (1 error, 0 warnings)'\necho 'variant embed: embed'\n"
    )
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    test_gpu.sanitize(runner, {"embed: embed", "output: choose"})
    said = capsys.readouterr().out
    assert "memcheck: 0 of 1" not in said and "racecheck: 0 of 1 processes were found clean" in said
    assert said.count("variants that no case has run: output: choose") == 2


def test_contexts_are_raised(tmp_path):
    from tiny_gguf import write_tiny_gguf
    from tiny_model import VARIANTS

    path = tmp_path / "llama.gguf"
    write_tiny_gguf(VARIANTS["llama"], path)
    before = path.read_bytes()
    test_gpu.patch_context(path)
    after = path.read_bytes()
    assert len(after) == len(before) and sum(a != b for a, b in zip(before, after)) == 1
    at = after.index(b"llama.context_length") + len(b"llama.context_length") + 4
    assert int.from_bytes(after[at : at + 4], "little") == test_gpu.CONTEXT
