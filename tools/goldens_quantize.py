#!/usr/bin/env python3
"""Writes tests/golden/quantised/bytes.json: what llama.cpp's quantiser makes of tiny models, for every file type that `quantize`
writes, with and without an importance matrix. Needs numpy, gguf and llama-quantize.

    goldens_quantize.py LLAMA_QUANTIZE

A case is "VARIANT TYPE" or "VARIANT TYPE imatrix"; its value is the SHA-256 over the tensors by name: the name, the type's name
and the bytes. `importance` is the matrix, a formula of names and sizes, so that the test makes the same one.
"""

import hashlib
import json
import struct
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
from tiny_gguf import gguf_tensors, write_tiny_gguf
from tiny_model import VARIANTS, hash_normal

BYTES = Path(__file__).resolve().parent.parent / "tests" / "golden" / "quantised" / "bytes.json"
CHOSEN = ["llama", "qwen3moe", "qwen35-r2"]
TYPES = ["F16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q4_K_S", "Q4_K_M", "Q5_K_S", "Q5_K_M", "Q6_K"]
CALLS, CHUNKS, DATASET = 6, 6, b"a text"


def importance(v):
    """{tensor: float32 values, one a column, expert after expert}; some matrices have none, as in real files."""
    result = {}
    for name, _, data in gguf_tensors(v):
        if data.ndim < 2 or not name.endswith(".weight") or name == "token_embd.weight" or "blk.1.attn_k" in name:
            continue
        matrices = data.shape[0] if data.ndim == 3 else 1
        values = np.exp(2 * hash_normal("importance of " + name, matrices * data.shape[-1]))
        values[::17] = 0
        result[name] = values.astype(np.float32)
    return result


def write_imatrix(v, path):
    """The format without a header: sums over the calls."""
    columns = importance(v)
    data = struct.pack("<i", len(columns))
    for name, values in columns.items():
        data += struct.pack("<i", len(name)) + name.encode() + struct.pack("<ii", CALLS, len(values))
        data += (values * CALLS).astype("<f4").tobytes()
    path.write_bytes(data + struct.pack("<ii", CHUNKS, len(DATASET)) + DATASET)


def write_gguf_imatrix(v, path):
    """The same as a GGUF file: sums and counts, one a matrix."""
    writer = gguf.GGUFWriter(path, "")
    writer.add_type("imatrix")
    writer.add_array("imatrix.datasets", [DATASET.decode()])
    writer.add_uint32("imatrix.chunk_count", CHUNKS)
    matrices = {name: data.shape[0] if data.ndim == 3 else 1 for name, _, data in gguf_tensors(v)}
    for name, values in importance(v).items():
        n = matrices[name]
        writer.add_tensor(name + ".in_sum2", (values * CALLS).astype(np.float32).reshape(n, -1))
        writer.add_tensor(name + ".counts", np.full((n, 1), CALLS, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def digest(path):
    total = hashlib.sha256()
    for tensor in sorted(gguf.GGUFReader(path).tensors, key=lambda t: t.name):
        total.update(f"{tensor.name} {tensor.tensor_type.name} ".encode() + tensor.data.tobytes())
    return total.hexdigest()


def main():
    cases = {}
    with tempfile.TemporaryDirectory() as folder:
        source, imatrix, out = (Path(folder) / name for name in ("source.gguf", "imatrix.dat", "out.gguf"))
        for variant in CHOSEN:
            write_tiny_gguf(VARIANTS[variant], source)
            write_imatrix(VARIANTS[variant], imatrix)
            for kind in TYPES:
                for options in ([], ["--imatrix", str(imatrix)]):
                    command = [sys.argv[1], *options, str(source), str(out), kind, "1"]
                    subprocess.run(command, check=True, capture_output=True)
                    cases[" ".join([variant, kind, *(["imatrix"] if options else [])])] = digest(out)
    BYTES.write_text(json.dumps(cases, indent=0) + "\n")


if __name__ == "__main__":
    main()
