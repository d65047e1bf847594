#!/usr/bin/env python3
"""Writes the golden files of the weight decoders, tests/data/quant/: block formats by the `gguf` package's own
dequantisation, safetensors layouts by PyTorch's float8 type and numpy in float64. Deterministic.

    goldens_quant.py OUT_FOLDER        needs numpy, gguf, torch, safetensors

Block formats. Blocks are made from an integer hash, so that the test can make the same ones: byte i of a format's
stream is byte i%8 of mix((type_id << 40) + i/8) (splitmix64); then the f16 field number j of block k is set to
finite pattern number (k + 31337*j) mod 63488, so that over 63488 blocks every finite bit pattern occurs in every
f16 field. blocks.txt has per format `type_id name blocks digest`, where digest is the sum over all elements e of
mix(float bits + (e << 32)) mod 2^64; blocks.f32 has the float32 values of each format's first 8 blocks.
"""
import json
import sys
from pathlib import Path

import numpy as np
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Type
from gguf.quants import dequantize, quantize
from safetensors.torch import save_file

FINITE = 63488  # finite f16 bit patterns
SHOWN = 8
# Offsets of the f16 fields of each block.
HALVES = {
    Type.F16: [0], Type.Q4_0: [0], Type.Q4_1: [0, 2], Type.Q5_0: [0], Type.Q5_1: [0, 2], Type.Q8_0: [0],
    Type.Q2_K: [80, 82], Type.Q3_K: [108], Type.Q4_K: [0, 2], Type.Q5_K: [0, 2], Type.Q6_K: [208],
    Type.IQ4_NL: [0], Type.IQ4_XS: [0],
}
KINDS = [Type.F32, Type.BF16, *HALVES, Type.MXFP4, Type.NVFP4]


def mix(x):
    """splitmix64 of an array of uint64."""
    with np.errstate(over="ignore"):
        x = x + np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return x ^ (x >> np.uint64(31))


def blocks_of(kind, n):
    """[n, bytes] uint8."""
    size = GGML_QUANT_SIZES[kind][1]
    words = (n * size + 7) // 8
    stream = mix((np.uint64(int(kind)) << np.uint64(40)) + np.arange(words, dtype=np.uint64)).view(np.uint8)
    blocks = stream[: n * size].reshape(n, size).copy()
    for j, offset in enumerate(HALVES.get(kind, [])):
        index = (np.arange(n) + 31337 * j) % FINITE
        half = (index % (FINITE // 2) | (index // (FINITE // 2)) << 15).astype("<u2")
        blocks[:, offset:offset + 2] = half.view(np.uint8).reshape(n, 2)
    if kind == Type.BF16:  # every pattern, NaN included: decoding is a shift
        blocks[:] = np.arange(n, dtype="<u2").view(np.uint8).reshape(n, 2)
    return blocks


def digest(values):
    bits = values.ravel().view(np.uint32).astype(np.uint64)  # floats, or integers as they are
    total = np.uint64(0)
    with np.errstate(over="ignore"):
        for first in range(0, len(bits), 1 << 20):
            part = bits[first:first + (1 << 20)]
            e = np.arange(first, first + len(part), dtype=np.uint64)
            total = total + mix(part + (e << np.uint64(32))).sum(dtype=np.uint64)
    return int(total)


def write_blocks(folder):
    lines, shown = [], []
    for kind in KINDS:
        elements, _ = GGML_QUANT_SIZES[kind]
        n = 65536 if kind == Type.BF16 else FINITE
        blocks = blocks_of(kind, n)
        with np.errstate(all="ignore"):
            values = dequantize(blocks.reshape(1, -1), kind).reshape(n, elements)
        assert values.dtype == np.float32, kind
        lines.append(f"{int(kind)} {kind.name} {n} {digest(values):016x}\n")
        shown.append(values[:SHOWN].astype("<f4").tobytes())
        print(lines[-1], end="")
    (folder / "blocks.txt").write_text("".join(lines))
    (folder / "blocks.f32").write_bytes(b"".join(shown))


ENCODED = [Type.F16, Type.BF16, Type.Q4_0, Type.Q4_1, Type.Q5_0, Type.Q5_1, Type.Q8_0]


def source_values(n):
    """[n] float32: 24 random bits v of mix(i) as (v - 2^23) * 2^(e - 23), where e runs over -14 ... 5 with the blocks of 32;
    every 97th block is zeros."""
    index = np.arange(n, dtype=np.uint64)
    block = (index >> np.uint64(5)).astype(np.int64)
    values = ((mix(index) >> np.uint64(40)).astype(np.int64) - (1 << 23)).astype(np.float32)
    values = np.ldexp(values, block % 20 - 14 - 23).astype(np.float32)
    values[block % 97 == 96] = 0
    return values


def write_encoded(folder):
    """encoded.txt: `type_id name values digest`, the digest of blocks.txt over the bytes that the package's own quantisation
    makes of source_values."""
    n, lines = 1 << 18, []
    for kind in ENCODED:
        data = quantize(source_values(n).reshape(1, -1), kind)
        digest_of = digest(data.view(np.uint8).astype(np.uint32))
        lines.append(f"{int(kind)} {kind.name} {n} {digest_of:016x}\n")
        print(lines[-1], end="")
    (folder / "encoded.txt").write_text("".join(lines))


E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])


def e4m3_finite(rng, shape, positive=False):
    """Random E4M3 codes without NaN."""
    codes = rng.integers(0, 127, shape, dtype=np.uint8)
    if not positive:
        codes |= rng.integers(0, 2, shape, dtype=np.uint8) << 7
    return torch.from_numpy(codes).view(torch.float8_e4m3fn)


def f64(tensor):
    return tensor.to(torch.float32).numpy().astype(np.float64)


def nvfp4(rng, prefix, shape, tensors, expected):
    """The same matrices in both forms. `shape` [out, in] or [experts, out, in]; one factor a matrix."""
    codes = rng.integers(0, 16, shape, dtype=np.uint8)
    packed = torch.from_numpy(codes[..., 0::2] | codes[..., 1::2] << 4)
    scales = e4m3_finite(rng, (*shape[:-1], shape[-1] // 16), positive=True)
    n = shape[0] if len(shape) == 3 else 1
    factors = []
    while len(factors) < n:  # a multiplier that its float32 reciprocal gives back exactly
        m = np.float32(rng.uniform(1e-5, 1e-3))
        if np.float32(1) / (np.float32(1) / m) == m:
            factors.append(m)
    factor = np.array(factors, dtype=np.float32)
    for form in ("ct", "mo"):
        p = f"{form}_{prefix}"
        tensors[p + ".weight_scale"] = scales.clone()
        if form == "ct":
            tensors[p + ".weight_packed"] = packed.clone()
            tensors[p + ".weight_global_scale"] = torch.from_numpy(np.float32(1) / factor)
            tensors[p + ".input_global_scale"] = torch.tensor([17.0])
        else:
            tensors[p + ".weight"] = packed.clone()
            tensors[p + ".weight_scale_2"] = torch.from_numpy(factor) if n > 1 else torch.tensor(factor[0])
            tensors[p + ".input_scale"] = torch.tensor(0.25)
        scale = np.repeat(f64(scales), 16, axis=-1) * factor.astype(np.float64).reshape(-1, *[1] * (len(shape) - 1))
        expected[p] = (E2M1[codes] * scale).reshape(shape)


def fp8(rng, tensors, expected):
    shape = (130, 144)
    for name in ("channel", "tensor", "block", "ctblock"):
        codes = e4m3_finite(rng, shape)
        tensors[name + ".weight"] = codes
        if name == "channel":
            scale = torch.from_numpy(rng.uniform(0.001, 0.1, (shape[0], 1)).astype(np.float32)).to(torch.bfloat16)
            tensors[name + ".weight_scale"] = scale
            expected[name] = f64(codes) * f64(scale)
        elif name == "tensor":
            tensors[name + ".weight_scale"] = torch.tensor(0.0123)
            tensors[name + ".input_scale"] = torch.tensor(0.5)
            expected[name] = f64(codes) * np.float64(np.float32(0.0123))
        else:
            scale = torch.from_numpy(rng.uniform(0.001, 0.1, (2, 2)).astype(np.float32))
            tensors[name + (".weight_scale_inv" if name == "block" else ".weight_scale")] = scale
            tiles = np.repeat(np.repeat(f64(scale), 128, axis=0), 128, axis=1)[: shape[0], : shape[1]]
            expected[name] = f64(codes) * tiles


def write_split(folder):
    folder.mkdir(exist_ok=True)
    rng = np.random.default_rng(4)
    tensors, expected = {}, {}
    nvfp4(rng, "linear", (24, 64), tensors, expected)
    nvfp4(rng, "experts", (3, 8, 32), tensors, expected)
    fp8(rng, tensors, expected)
    save_file(tensors, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps({"model_type": "fixture"}) + "\n")
    values = b"".join(expected[name].astype("<f4").tobytes() for name in sorted(expected))
    (folder / "expected.f32").write_bytes(values)


def main():
    folder = Path(sys.argv[1])
    folder.mkdir(parents=True, exist_ok=True)
    write_blocks(folder)
    write_encoded(folder)
    write_split(folder / "split")


if __name__ == "__main__":
    main()
