"""Risk: `make run` builds for a GPU that cannot be used, or passes over one that can."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TOOL = Path(__file__).resolve().parent / "find_gpu.py"
# The part of the driver's library that is used.
FAKE_CUDA = r"""
#include <string.h>
int cuDriverGetVersion(int *version) { *version = CUDA; return 0; }
int cuInit(unsigned flags) { return INIT; }
int cuDeviceGetCount(int *n) { *n = COUNT; return 0; }
int cuDeviceGet(int *device, int i) { *device = i; return 0; }
int cuDeviceGetName(char *name, int n, int device) { strncpy(name, NAME, n); return 0; }
int cuDeviceGetAttribute(int *value, int attribute, int device) { *value = attribute == 75 ? MAJOR : MINOR; return attribute < 75; }
"""


@pytest.fixture
def look(tmp_path):
    """Runs the tool beside a made-up driver (None: none); returns (exit code, stdout, stderr)."""

    def run(word, machine):
        environment = dict(os.environ)
        if machine is not None:
            (tmp_path / "cuda.c").write_text(FAKE_CUDA)
            values = {"CUDA": 13000, "INIT": 0, "COUNT": 1, "NAME": '"NVIDIA H200"', "MAJOR": 9, "MINOR": 0} | machine
            subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libcuda.so.1", tmp_path / "cuda.c",
                            *(f"-D{key}={value}" for key, value in values.items())], check=True)    # fmt: skip
            environment["LD_LIBRARY_PATH"] = str(tmp_path)
        done = subprocess.run([sys.executable, TOOL, word], env=environment, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout, done.stderr

    return run


def test_a_gpu_is_used_and_named(look):
    code, out, err = look("auto", {})
    assert (code, out) == (0, "cuda\n")
    assert err.count("\n") == 1 and "on NVIDIA H200" in err and "BACKEND=cpu" in err
    assert look("auto", {"MAJOR": 12, "MINOR": 1, "CUDA": 13010})[1] == "cuda\n"


@pytest.mark.parametrize(
    "machine, why",
    [
        ({"CUDA": 12080}, "supports CUDA 12.8, expected 13.0 or newer (driver 580)"),
        ({"MAJOR": 8, "NAME": '"NVIDIA A100"'}, "NVIDIA A100 has compute capability 8.0, expected 9.0, 12.0 or 12.1"),
        ({"COUNT": 0}, "sees no GPU"),
        ({"INIT": 100}, "sees no GPU (CUDA error 100)"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_passed_over_with_the_reason(look, machine, why):
    code, out, err = look("auto", machine)
    assert (code, out) == (0, "cpu\n")
    assert err.count("\n") == 1 and err.startswith("run: on the CPU, since no GPU can be used: ") and why in err


def test_what_is_asked_for_is_taken(look):
    assert look("cpu", {}) == (0, "cpu\n", "")
    assert look("cuda", {"COUNT": 0}) == (0, "cuda\n", "")
    code, out, err = look("gpu", None)
    assert code == 2 and out == "" and "expected auto, cuda or cpu" in err


def test_tests_of_the_gpu_fail_where_there_is_none(look):
    code, out, err = look("needed", {"COUNT": 0})
    assert (code, out) == (1, "") and "nothing was run" in err and "sees no GPU" in err and "tools/test_gpu.py" in err
    code, out, err = look("needed", {})
    assert (code, out, err) == (0, "", "test-gpu: on NVIDIA H200\n")
