#!/usr/bin/env python3
"""Proves the NVFP4 and FP8 layouts of the tiny checkpoints against the packages that define them; prints what it found.

Needs compressed-tensors and nvidia-modelopt beside torch. What the packages decode from our bytes must be what the goldens
were computed from, and the codes that our encoder writes must be the packages', save where a value lies on a rounding
boundary to within float32 (the packages round a float32 quotient, we a float64 one).
"""

import numpy as np
import torch
from compressed_tensors.compressors.nvfp4.helpers import quantize_and_pack_fp4, unpack_fp4_from_uint8
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize
from modelopt.torch.quantization.qtensor.nvfp4_tensor import NVFP4QTensor

import oracle_formats as formats
from tiny_model import VARIANTS, layout_encoder, weights

LIMIT = 2e-7  # relative; float32 rounds a quotient of two products within this


class Tally:
    """Codes compared, codes that differ, the farthest of those from a rounding boundary, and the decoded values' distance."""

    def __init__(self, name):
        self.name, self.count, self.differ, self.farthest, self.decoded = name, 0, 0, 0.0, 0.0

    def codes(self, ours, theirs, values, table):
        """values: what was rounded to table; ours and theirs: the codes."""
        different = ours != theirs
        self.count += ours.size
        self.differ += int(different.sum())
        if different.any():
            middle = (table[1:] + table[:-1]) / 2
            x = np.abs(values[different])[:, None]
            self.farthest = max(self.farthest, float(np.min(np.abs(x / middle - 1), axis=1).max()))

    def values(self, ours, theirs):
        self.decoded = max(
            self.decoded, float(np.abs(np.asarray(theirs, np.float64) - ours).max() / np.abs(ours).max())
        )

    def report(self):
        print(f"{self.name}: {self.count} codes, {self.differ} differ, all of those within {self.farthest:.1e} of a rounding "
              f"boundary; decoded values within {self.decoded:.1e} of the largest")  # fmt: skip
        if self.farthest > LIMIT or self.decoded > LIMIT:
            raise SystemExit(f"{self.name}: more than float32 rounding explains")


def nibbles(packed):
    return np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)


def fp8(codes):
    return torch.from_numpy(codes.copy()).view(torch.float8_e4m3fn)


def compare_compressed_tensors(w, tally):
    parts, decoded = formats.encode_nvfp4_ct(w)
    packed, scale, divisor = (
        parts[key][1] for key in ("weight_packed", "weight_scale", "weight_global_scale")
    )
    scales = fp8(scale).float()
    theirs = quantize_and_pack_fp4(
        torch.from_numpy(w).float(), scales, global_scale=torch.from_numpy(divisor), group_size=16
    )
    rounded = w * np.float64(divisor[0]) / np.repeat(formats.e4m3_decode(scale), 16, 1)
    tally.codes(nibbles(packed), nibbles(theirs.numpy()), rounded, formats.E2M1_VALUES)
    values = unpack_fp4_from_uint8(torch.from_numpy(packed), *w.shape, dtype=torch.float32)
    args = QuantizationArgs(num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True)
    back = dequantize(
        x_q=values, scale=scales, args=args, global_scale=torch.from_numpy(divisor), dtype=torch.float32
    )
    tally.values(decoded, back.numpy())


def compare_modelopt(w, tally_codes, tally_scales):
    parts, decoded = formats.encode_nvfp4_modelopt(w)
    packed, scale, multiplier = (parts[key][1] for key in ("weight", "weight_scale", "weight_scale_2"))
    tensor, scale_theirs, multiplier_theirs = NVFP4QTensor.quantize(torch.from_numpy(w).float(), 16)
    assert float(multiplier_theirs) == float(multiplier)
    scale_theirs = scale_theirs.view(torch.uint8).numpy()
    largest = np.abs(w.reshape(w.shape[0], -1, 16)).max(2) / (6 * np.float64(multiplier))
    tally_scales.codes(scale, scale_theirs, largest, formats.E4M3_VALUES)
    same = np.repeat(
        scale == scale_theirs, 16, 1
    )  # a block with another scale has other codes of its own right
    rounded = w / (np.repeat(formats.e4m3_decode(scale), 16, 1) * np.float64(multiplier))
    theirs = nibbles(tensor._quantized_data.numpy())
    tally_codes.codes(nibbles(packed)[same], theirs[same], rounded[same], formats.E2M1_VALUES)
    ours = NVFP4QTensor(torch.Size(w.shape), torch.float32, torch.from_numpy(packed))
    two = torch.from_numpy(np.array(multiplier))
    back = ours.dequantize(dtype=torch.float32, scale=fp8(scale), double_scale=two, block_sizes={-1: 16})
    tally_codes.values(decoded, back.numpy())


def compare_fp8(w, tally):
    """Codes of FP8 per channel against torch's conversion of the float32 quotient, and torch's reading of the codes."""
    parts, decoded = formats.encode_fp8_channel(w)
    codes, scale = parts["weight"][1], formats.bf16_decode(parts["weight_scale"][1]).astype(np.float64)
    theirs = torch.from_numpy(w / scale).float().clamp(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8)
    tally.codes(codes, theirs.numpy(), w / scale, formats.E4M3_VALUES)
    tally.values(decoded, fp8(codes).double().numpy() * scale)


def main():
    tallies = [
        Tally("compressed-tensors NVFP4"),
        Tally("ModelOpt NVFP4"),
        Tally("ModelOpt block scales"),
        Tally("torch FP8"),
    ]
    v = VARIANTS["qwen35-r3-nvfp4-ct"]
    for name, w in weights(v).items():
        if layout_encoder(v, name):
            w = w.astype(np.float64)
            compare_compressed_tensors(w, tallies[0])
            compare_modelopt(w, tallies[1], tallies[2])
            compare_fp8(w, tallies[3])
    for tally in tallies:
        tally.report()


if __name__ == "__main__":
    main()
