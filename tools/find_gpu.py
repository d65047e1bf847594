#!/usr/bin/env python3
"""Whether `make run` computes on the GPU: prints `cuda` or `cpu`, and on stderr one line that says why.

Usage: tools/find_gpu.py auto|cuda|cpu
       tools/find_gpu.py needed     for `make test-gpu`: exit 1, with what to do instead, where no GPU can be used

Looks through the driver's own library, as the program will: a driver for CUDA 13.0 (the 580 series) or newer, and a first GPU
that the program has code for. `cuda` and `cpu` are taken as they are. Starts nothing on the GPU. Standard library only.
"""

import ctypes
import sys

CUDA_NEEDED = 13000    # CUDA 13.0, which drivers from the 580 series on support
CAPABILITIES = {(9, 0), (12, 0), (12, 1)}
MAJOR, MINOR = 75, 76    # CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR, _MINOR


def driver_version():
    """The driver's own version, "580.159.03", of /proc; empty where there is none."""
    try:
        with open("/proc/driver/nvidia/version", encoding="utf-8") as file:
            words = file.readline().split()
    except OSError:
        return ""
    return next((word for word in words if word[0].isdigit() and "." in word), "")


def obstacle(library="libcuda.so.1"):
    """(why no GPU is used, or "", name of the GPU)."""
    version = driver_version()
    try:
        cuda = ctypes.CDLL(library)
    except OSError:
        return (f"the NVIDIA driver {version} has no {library} here" if version else "no NVIDIA driver is installed"), ""
    supported = ctypes.c_int(0)
    if cuda.cuDriverGetVersion(ctypes.byref(supported)) != 0:
        return "the NVIDIA driver does not tell its version", ""
    if supported.value < CUDA_NEEDED:
        found = f"{supported.value // 1000}.{supported.value % 1000 // 10}"
        return f"the NVIDIA driver {version} supports CUDA {found}, expected 13.0 or newer (driver 580)".replace("  ", " "), ""
    status = cuda.cuInit(0)
    count = ctypes.c_int(0)
    if status == 0:
        status = cuda.cuDeviceGetCount(ctypes.byref(count))
    if status != 0 or count.value == 0:
        return f"the NVIDIA driver sees no GPU (CUDA error {status})", ""
    device, name, major, minor = ctypes.c_int(0), ctypes.create_string_buffer(256), ctypes.c_int(0), ctypes.c_int(0)
    cuda.cuDeviceGet(ctypes.byref(device), 0)
    cuda.cuDeviceGetName(name, len(name), device)
    cuda.cuDeviceGetAttribute(ctypes.byref(major), MAJOR, device)
    cuda.cuDeviceGetAttribute(ctypes.byref(minor), MINOR, device)
    text = name.value.decode(errors="replace")
    if (major.value, minor.value) not in CAPABILITIES:
        return f"{text} has compute capability {major.value}.{minor.value}, expected 9.0, 12.0 or 12.1", text
    return "", text


def needed():
    """Exit code 0 where a GPU can be used; else 1, and how the tests get to one."""
    why, name = obstacle()
    if not why:
        print(f"test-gpu: on {name}", file=sys.stderr)
        return 0
    print(f"test-gpu: nothing was run, since no GPU can be used here: {why}. build/cuda/gpu_test is built; on a machine with a GPU, "
          "in a copy of this tree: tools/test_gpu.py --binary build/cuda/gpu_test", file=sys.stderr)
    return 1


def main():
    if sys.argv[1:] == ["needed"]:
        return needed()
    if len(sys.argv) != 2 or sys.argv[1] not in ("auto", "cuda", "cpu"):
        print(f"BACKEND is '{' '.join(sys.argv[1:])}', expected auto, cuda or cpu", file=sys.stderr)
        return 2
    kind, why = sys.argv[1], ""
    if kind == "auto":
        why, name = obstacle()
        kind = "cpu" if why else "cuda"
        if why:
            print(f"run: on the CPU, since no GPU can be used: {why}", file=sys.stderr)
        else:
            print(f"run: on {name}, with the CUDA backend: the first build takes up to 25 minutes and, without a CUDA toolkit, "
                  "downloads its compiler (277 MB). On the CPU instead: make run BACKEND=cpu", file=sys.stderr)
    print(kind)
    return 0


if __name__ == "__main__":
    sys.exit(main())
