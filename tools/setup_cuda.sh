#!/bin/sh
# setup_cuda.sh — a CUDA compiler of 13.0 or newer: prints its path on stdout, everything else goes to stderr.
# Taken is the first of: $CUDACXX, /usr/local/cuda/bin/nvcc, nvcc of the PATH, and the pinned packages of
# tools/requirements-cuda.txt in .venv-cuda, which is made when nothing else is there (277 MB to download).
set -eu
cd "$(dirname "$0")/.."
least=13    # major version

say() { echo "setup: $*" >&2; }
major_of() { "$1" --version 2>/dev/null | sed -n 's/.*release \([0-9]*\)\.[0-9]*.*/\1/p'; }

if [ -n "${CUDACXX:-}" ]; then
    major=$(major_of "$CUDACXX") || major=""
    [ "${major:-0}" -ge $least ] && { echo "$CUDACXX"; exit 0; }
    say "CUDACXX is '$CUDACXX', which is CUDA ${major:-unknown}; expected the nvcc of CUDA $least.0 or newer"
    exit 2
fi
for nvcc in /usr/local/cuda/bin/nvcc "$(command -v nvcc || true)"; do
    [ -x "$nvcc" ] || continue
    major=$(major_of "$nvcc") || major=""
    [ "${major:-0}" -ge $least ] && { echo "$nvcc"; exit 0; }
    say "passing over $nvcc, which is CUDA ${major:-unknown}: $least.0 or newer is needed"
done

venv=.venv-cuda pins=tools/requirements-cuda.txt
if ! cmp -s $pins $venv/.requirements || ! $venv/bin/python -c '' 2>/dev/null; then
    say "installing the CUDA compiler into $venv from $pins"
    $venv/bin/python -m pip --version >/dev/null 2>&1 || { rm -rf $venv; python3 -m venv $venv; }
    if ! $venv/bin/python -m pip install -q --disable-pip-version-check --retries 5 -r $pins </dev/null >&2; then
        say "pip could not install $pins into $venv (message above). Try again:  make cuda"
        exit 1
    fi
    root=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13
    # Two names that compilers and CMake look for and the packages lack.
    ln -sfn lib "$root/lib64"
    ln -sfn libcudart.so.13 "$root/lib/libcudart.so"
    cp $pins $venv/.requirements
fi
root=$($venv/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/nvidia/cu13
[ -x "$root/bin/nvcc" ] || { say "$root/bin/nvcc is missing. Remove $venv and try again:  make cuda"; exit 1; }
echo "$root/bin/nvcc"
