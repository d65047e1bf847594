"""Risk: doctor says something of the machine that is not so, or nothing where a GPU could be used."""

import os
import subprocess

import pytest

# The part of NVIDIA's management library that is used, for a machine with one GPU.
FAKE_NVML = r"""
#include <string.h>
struct memory { unsigned long long total, free, used; };
struct pci { char legacy[16]; unsigned domain, bus, device, id, subsystem; char bus_id[32]; };
int nvmlInit_v2(void) { return 0; }
int nvmlShutdown(void) { return 0; }
int nvmlSystemGetDriverVersion(char *text, unsigned n) { strncpy(text, DRIVER, n); return 0; }
int nvmlSystemGetCudaDriverVersion_v2(int *version) { *version = CUDA; return 0; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 1; return 0; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **device) { *device = (void *)1; return i != 0; }
int nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device) { *device = (void *)1; return strcmp(id, "0000:19:00.0") != 0; }
int nvmlDeviceGetName(void *device, char *text, unsigned n) { strncpy(text, NAME, n); return 0; }
int nvmlDeviceGetPciInfo_v3(void *device, struct pci *p) { strcpy(p->bus_id, "00000000:19:00.0"); return 0; }
int nvmlDeviceGetCudaComputeCapability(void *device, int *major, int *minor) { *major = MAJOR; *minor = 0; return 0; }
int nvmlDeviceGetMemoryInfo(void *device, struct memory *m) { m->total = 140ull << 30; m->free = 100ull << 30; return 0; }
int nvmlDeviceGetClockInfo(void *device, int type, unsigned *mhz) { *mhz = 1980; return type != 1; }
int nvmlDeviceGetTemperature(void *device, int sensor, unsigned *c) { *c = 39; return NO_TEMPERATURE || sensor != 0; }
"""


def by_name(out):
    """The lines by their first word; of those that come several times the first."""
    lines = {}
    for line in out.decode().splitlines():
        name, text = line.split(None, 1)
        lines.setdefault(name, text)
    return lines


@pytest.fixture
def doctor(execute, tmp_path):
    """Runs doctor beside a made-up management library; returns (exit code, {name of the line: text})."""

    def run(*arguments, driver="580.159.03", cuda=13000, name="NVIDIA H200", major=9, no_temperature=0):
        (tmp_path / "nvml.c").write_text(FAKE_NVML)
        values = {"DRIVER": f'"{driver}"', "CUDA": cuda, "NAME": f'"{name}"', "MAJOR": major, "NO_TEMPERATURE": no_temperature}
        subprocess.run(["cc", "-shared", "-fPIC", "-o", tmp_path / "libnvidia-ml.so.1", tmp_path / "nvml.c",
                        *(f"-D{key}={value}" for key, value in values.items())], check=True)  # fmt: skip
        code, out, err = execute("doctor", *arguments, env={**os.environ, "LD_LIBRARY_PATH": str(tmp_path)})
        return code, by_name(out)

    return run


def test_the_basics_are_there_without_a_gpu(execute):
    code, out, err = execute("doctor")
    assert code == 0 and err == b""
    lines = by_name(out)
    assert list(lines)[:5] == ["program", "system", "cpu", "memory", "driver"] and "computes" in lines
    assert lines["program"].startswith("sparkinfer ") and "(commit " in lines["program"]
    assert lines["cpu"].endswith("cores usable") and " GiB available of " in lines["memory"]
    assert " GiB free in " in lines["folder"] and lines["files"].endswith("open at once")


def test_a_gpu_is_described(doctor):
    """The binary under test has no CUDA, so the GPU it sees is not used, and the way to use it is said."""
    code, lines = doctor()
    assert code == 0
    assert lines["driver"] == "NVIDIA 580.159.03, supports CUDA 13.0"
    assert lines["gpu"].startswith(
        "NVIDIA H200 at 0000:19:00.0, compute capability 9.0, 100.0 of 140.0 GiB free, 1980 MHz, 39 °C")
    if lines["program"].endswith("without CUDA"):
        assert lines["computes"] == "on the CPU; no GPU is used: this program was built without the CUDA backend"
        assert "make cuda" in lines["advice"]


def test_what_the_library_does_not_tell_is_left_out(doctor):
    assert "°C" not in doctor(no_temperature=1)[1]["gpu"]


@pytest.mark.parametrize(
    "machine, why, advice",
    [
        ({"driver": "570.86.10", "cuda": 12080}, "the NVIDIA driver 570.86.10 supports CUDA 12.8, expected CUDA 13.0", "580"),
        ({"name": "NVIDIA A100", "major": 8}, "NVIDIA A100 has compute capability 8.0, expected 9.0, 12.0 or 12.1", "CPU"),
    ],
)
def test_why_a_gpu_is_not_used(doctor, machine, why, advice):
    code, lines = doctor(**machine)
    assert code == 0
    assert why in lines["computes"] and advice in lines["advice"]
    assert doctor("--backend", "cuda", **machine)[0] == 4


def test_models_that_fit_and_folders_that_cannot_be_written(execute, smollm2, tmp_path):
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "small.gguf").symlink_to(smollm2)
    (tmp_path / "models" / "broken.gguf").write_bytes(b"GGUF")
    (tmp_path / "file").write_text("no folder")
    env = {**os.environ, "HOME": str(tmp_path / "file"), "XDG_DATA_HOME": ""}
    out = execute("doctor", cwd=tmp_path, env=env)[1].decode()
    assert "models/small.gguf fits into memory: about 0." in out
    assert "models/broken.gguf does not run: " in out
    assert "it cannot be written: say `pull --to FOLDER`" in out
    none = {key: value for key, value in os.environ.items() if key not in ("HOME", "XDG_DATA_HOME")}
    out = execute("doctor", cwd=tmp_path / "models", env=none)[1].decode()
    assert "HOME and XDG_DATA_HOME are not set" in out


def test_few_open_files_are_said(execute):
    import resource

    limit = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))  # noqa: E731
    out = execute("doctor", preexec_fn=limit)[1].decode()
    assert "256 may be open at once" in out and "ulimit -n" in out
