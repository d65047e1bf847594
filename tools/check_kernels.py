#!/usr/bin/env python3
"""Compiles every src/cuda/*.cu for both code generations and holds each kernel to what its file says it takes.

Usage: tools/check_kernels.py [NVCC]     without NVCC, the compiler that tools/setup_cuda.sh finds or obtains

Above a kernel a line states its limits, the most that any of its instances takes on any code generation:
    // Kernel     attention_plain: 56 registers, 4224 bytes
Registers are handed out by eights; bytes are those of static shared memory, and ", 0 bytes" is left out. Wrong are: a spill,
more registers or bytes than stated, a kernel without such a line or a line without its kernel, an instance that one code
generation has and another lacks. SPILLS lists what is allowed to spill as yet: it may be lowered, and has to be when the
kernel spills less. The host's side of the backend is compiled too. With ccache, what has not changed costs a second.
"""

import os
import re
import resource
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "build" / "kernels"
TARGETS = ["90a", "120f"]
# As src/cuda/cuda.cmake has them.
FLAGS = ["-std=c++20", "-O3", "-DNDEBUG", "--expt-relaxed-constexpr", "-diag-suppress", "1675", "-Isrc"]
HOST_FLAGS = ["-std=c++20", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-DSPARKINFER_CUDA",
              '-DSPARKINFER_CUDA_TARGETS="90a,120f"', "-Isrc"]
# Kernel -> the most bytes that an instance may spill: a debt. Where the spill grows, the kernel is mended, not this.
SPILLS = {"attention_prompt": 72, "delta_heads": 44, "delta_step": 4, "linear_slab_long": 92, "pack": 12, "slab_gemm_mma": 28}

DEFINITION = re.compile(r"__global__\s+void\s+(?:__\w+__\s*\((?:[^()]|\([^()]*\))*\)\s*)*(\w+)\s*\(")
STATEMENT = re.compile(r"^// Kernel\s+(\w+): (\d+) registers(?:, (\d+) bytes)?$", re.MULTILINE)


@dataclass(frozen=True)
class Limit:
    """What a file says of a kernel; `file` is where."""

    file: str
    registers: int
    shared: int    # bytes, static



@dataclass(frozen=True)
class Instance:
    """One compiled kernel as ptxas reports it."""

    symbol: str    # mangled
    kernel: str    # its name alone
    target: str    # "sm_90a"
    registers: int
    shared: int    # bytes, static
    spill: int     # bytes, the larger of stores and loads


def kernel_of(symbol):
    """The function's own name in a mangled one: the last part of its nested name, or the name alone."""
    at, name = 2, None
    if symbol[at : at + 1] == "N":
        at += 1
    while match := re.match(r"\d+", symbol[at:]):
        at += match.end()
        name = symbol[at : at + int(match[0])]
        at += int(match[0])
    if name is None:
        raise ValueError(f"'{symbol}' is no mangled name of a kernel")
    return name


def parse_ptxas(text):
    """The instances in what `nvcc -Xptxas -v` prints."""
    instances = []
    symbol = target = spill = None
    for line in text.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for '(\w+)'", line):
            symbol, target, spill = match[1], match[2], None
        elif symbol and spill is None and (match := re.search(r"(\d+) bytes spill stores, (\d+) bytes spill loads", line)):
            spill = max(int(match[1]), int(match[2]))
        elif symbol and (match := re.search(r"Used (\d+) registers", line)):
            shared = re.search(r"(\d+) bytes smem", line)
            instances.append(Instance(symbol, kernel_of(symbol), target, int(match[1]), int(shared[1]) if shared else 0, spill or 0))
            symbol = None
    return instances


def read_sources(folder):
    """({kernel: its Limit}, {kernel: file that defines it}) of the .cu and .cuh files of a folder."""
    limits, defined = {}, {}
    for path in sorted(folder.rglob("*.cu*")):
        text, name = path.read_text(encoding="utf-8"), path.name
        for match in STATEMENT.finditer(text):
            limits[match[1]] = Limit(name, int(match[2]), int(match[3] or 0))
        code = re.sub(r"//[^\n]*", "", text)
        defined |= {match[1]: name for match in DEFINITION.finditer(code)}
    return limits, defined


def most(instances):
    """{kernel: (registers, shared, spill)}, the largest of all its instances each."""
    found = {}
    for i in instances:
        old = found.get(i.kernel, (0, 0, 0))
        found[i.kernel] = (max(old[0], i.registers), max(old[1], i.shared), max(old[2], i.spill))
    return found


def check_statements(limits, defined):
    """Yields what is wrong between the kernels of the sources and their lines."""
    for kernel, file in sorted(defined.items()):
        if kernel not in limits:
            yield f"{file}: {kernel} has no line '// Kernel     {kernel}: N registers, N bytes'"
        elif limits[kernel].file != file:
            yield f"{file}: the line of {kernel} is in {limits[kernel].file}, expected beside the kernel"
    for kernel, limit in sorted(limits.items()):
        if kernel not in defined:
            yield f"{limit.file}: a line is about {kernel}, which is no kernel there"


def check_use(instances, limits, spills):
    """Yields what is wrong with the registers, shared memory and spills of compiled kernels."""
    for kernel, (registers, shared, spill) in sorted(most(instances).items()):
        limit, allowed = limits.get(kernel), spills.get(kernel, 0)
        if limit and registers > limit.registers:
            yield f"{limit.file}: {kernel} takes {registers} registers, its line says {limit.registers}"
        if limit and shared > limit.shared:
            yield f"{limit.file}: {kernel} takes {shared} bytes of shared memory, its line says {limit.shared}"
        if spill > allowed:
            worst = max((i for i in instances if i.kernel == kernel), key=lambda i: i.spill)
            yield f"{kernel} spills {spill} bytes, {allowed} are allowed: {worst.symbol} on {worst.target}"
        if spill < allowed:
            yield f"{kernel} spills {spill} bytes, {allowed} are allowed: " + (
                f"lower its number in SPILLS to {spill}" if spill else "take it out of SPILLS")
    for kernel in sorted(set(spills) - {i.kernel for i in instances}):
        yield f"SPILLS has {kernel}, which is no kernel"


def check_targets(instances, defined, targets):
    """Yields the kernels that some code generation lacks."""
    having = {target: {i.symbol for i in instances if i.target == target} for target in targets}
    for target in targets:
        for symbol in sorted(set().union(*having.values()) - having[target]):
            yield f"{target} lacks {symbol}"
        kernels = {i.kernel for i in instances if i.target == target}
        for kernel in sorted(set(defined) - kernels):
            yield f"{target} lacks {kernel} of {defined[kernel]}: nothing launches it"


def command_prefix():
    """ccache where there is one, with paths that do not name this folder."""
    ccache = shutil.which("ccache")
    return ["env", f"CCACHE_BASEDIR={ROOT}", "CCACHE_NOHASHDIR=1", ccache] if ccache else []


def compile_file(nvcc, path):
    """(name, seconds, exit code, output) of one .cu for all targets, or of one .cpp of the host."""
    if path.suffix == ".cu":
        gencode = [f"-gencode=arch=compute_{t},code=sm_{t}" for t in TARGETS]
        command = [*command_prefix(), nvcc, *FLAGS, *gencode, "-Xptxas", "-v", "-c", str(path), "-o", str(OUT / f"{path.stem}.o")]
    else:
        include = Path(nvcc).resolve().parent.parent / "include"
        command = ["c++", *HOST_FLAGS, "-isystem", str(include), str(path)]
    start = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    return path.name, time.monotonic() - start, done.returncode, done.stdout + done.stderr


def compile_all(nvcc):
    """(instances, names of the files that do not compile). Prints their messages, and keeps each log under build/kernels."""
    OUT.mkdir(parents=True, exist_ok=True)
    files = sorted(ROOT.glob("src/cuda/*.cu")) + sorted(ROOT.glob("src/cuda/*.cpp")) + [ROOT / "src/cli/main.cpp"]
    slow_first = sorted(files, key=lambda path: (path.suffix != ".cu", "slab" not in path.name))
    instances, broken = [], []
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for name, seconds, code, output in pool.map(lambda path: compile_file(nvcc, path), slow_first):
            (OUT / f"{name}.log").write_text(output)
            if code != 0:
                broken.append(name)
                print(output, flush=True)
            else:
                found = parse_ptxas(output)
                instances += found
                print(f"{name:<24} {seconds:6.1f} s  {len(found)} kernels", flush=True)
    return instances, broken


def main():
    if len(sys.argv) > 2 or sys.argv[1:2] in (["-h"], ["--help"]):
        print(__doc__, file=sys.stderr)
        return 2
    nvcc = sys.argv[1] if len(sys.argv) == 2 else None
    if nvcc is None:
        done = subprocess.run([ROOT / "tools" / "setup_cuda.sh"], stdout=subprocess.PIPE, text=True, check=False)
        if done.returncode != 0:
            return done.returncode
        nvcc = done.stdout.strip()
    instances, broken = compile_all(nvcc)
    limits, defined = read_sources(ROOT / "src" / "cuda")
    wrong = [f"{name} does not compile" for name in broken]
    wrong += check_statements(limits, defined)
    if not broken:
        wrong += check_use(instances, limits, SPILLS)
        wrong += check_targets(instances, defined, [f"sm_{target}" for target in TARGETS])
    print("".join(f"{line}\n" for line in wrong), end="")
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    print(f"{len(defined)} kernels, {len(instances)} instances for {' and '.join(TARGETS)}, "
          f"{used.ru_utime + used.ru_stime:.0f} s of CPU: {len(wrong)} findings")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
