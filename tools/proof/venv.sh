#!/usr/bin/env bash
# venv.sh FOLDER REQUIREMENT…: a Python environment of its own with these packages. Present already: silent and instant.
# Packages are chosen and fetched by uv, in seconds where pip takes minutes.
set -euo pipefail
cd "$(dirname "$0")/../.."
folder=$1
shift
[ "$(cat "$folder/.installed" 2>/dev/null)" != "$*" ] || exit 0
uv=build/proof/uv
if [ ! -x $uv/bin/uv ]; then
    python3 -m venv $uv
    $uv/bin/pip install --quiet --disable-pip-version-check uv==0.13.9 >&2
fi
rm -rf "$folder"
$uv/bin/uv venv --quiet --seed "$folder" >&2
$uv/bin/uv pip install --quiet --python "$folder/bin/python" "$@" >&2
echo "$*" >"$folder/.installed"
