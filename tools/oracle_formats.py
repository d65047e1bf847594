"""Number formats and containers of the golden fixtures, in numpy alone.

BF16, FP8 E4M3, FP4 E2M1 and NVFP4 encoders and decoders, a safetensors reader and writer, a GGUF v3 writer.
They are written from the formats' definitions and share no code with the engine, whose oracle they serve.
"""

import json
import struct
from pathlib import Path

import numpy as np

E4M3_MAX = 448.0
E2M1_MAX = 6.0
E2M1_VALUES = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])


# ---- BF16 -----------------------------------------------------------------------------------------------------------


def bf16_encode(values):
    """Real numbers -> uint16 bit patterns of BF16, nearest even (through float32; no NaN expected)."""
    bits = np.asarray(values, np.float32).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def bf16_decode(bits):
    """uint16 bit patterns of BF16 -> float32."""
    return (np.asarray(bits, np.uint16).astype(np.uint32) << 16).view(np.float32)


def bf16_round(values):
    """Real numbers -> the nearest BF16 values, as float32."""
    return bf16_decode(bf16_encode(values))


# ---- FP8 E4M3 (FN) and FP4 E2M1 -------------------------------------------------------------------------------------


def _e4m3_table():
    """The 127 finite values of codes 0x00..0x7E, ascending: 4 exponent bits (bias 7), 3 mantissa bits, subnormals."""
    code = np.arange(127)
    exponent, mantissa = code >> 3, code & 7
    normal = (1 + mantissa / 8) * np.exp2(exponent - 7.0)
    return np.where(exponent == 0, mantissa * np.exp2(-9.0), normal)


E4M3_VALUES = _e4m3_table()


def _nearest_even(magnitude, table):
    """Index of the nearest entry of an ascending table; a tie goes to the even index; above the last, the last."""
    hi = np.clip(np.searchsorted(table, magnitude, side="left"), 1, len(table) - 1)
    lo = hi - 1
    to_lo, to_hi = magnitude - table[lo], table[hi] - magnitude
    take_hi = (to_hi < to_lo) | ((to_hi == to_lo) & (hi % 2 == 0))
    return np.where(take_hi, hi, lo).astype(np.uint8)


def e4m3_encode(values):
    """Real numbers -> uint8 codes of E4M3 FN, nearest even, saturating at 448."""
    values = np.asarray(values, np.float64)
    return _nearest_even(np.abs(values), E4M3_VALUES) | (np.signbit(values).astype(np.uint8) << 7)


def e4m3_decode(codes):
    """uint8 codes of E4M3 FN (never NaN here) -> float64."""
    magnitude = E4M3_VALUES[codes & 0x7F]
    return np.where(codes & 0x80, -magnitude, magnitude)


def e2m1_encode(values):
    """Real numbers -> 4-bit codes of E2M1 in uint8, nearest even, saturating at 6."""
    values = np.asarray(values, np.float64)
    return _nearest_even(np.abs(values), E2M1_VALUES) | (np.signbit(values).astype(np.uint8) << 3)


def e2m1_decode(codes):
    """4-bit codes of E2M1 in uint8 -> float64."""
    magnitude = E2M1_VALUES[codes & 7]
    return np.where(codes & 8, -magnitude, magnitude)


# ---- Weight layouts of quantised checkpoints ------------------------------------------------------------------------
# Each encoder takes w [out, in] and gives ({suffix: (dtype, array)}, decoded float64 [out, in]).


def encode_fp8_channel(w):
    """compressed-tensors float-quantized: one BF16 multiplier a row."""
    scale_bits = bf16_encode(np.abs(w).max(axis=1, keepdims=True) / E4M3_MAX)  # [out, 1]
    scale = bf16_decode(scale_bits).astype(np.float64)
    codes = e4m3_encode(w / scale)
    return {"weight": ("F8_E4M3", codes), "weight_scale": ("BF16", scale_bits)}, e4m3_decode(codes) * scale


def encode_fp8_tensor(w):
    """ModelOpt FP8: one float32 multiplier a tensor, and a static activation scale that a W8A16 path ignores."""
    scale = np.float32(np.abs(w).max() / E4M3_MAX)
    codes = e4m3_encode(w / np.float64(scale))
    parts = {
        "weight": ("F8_E4M3", codes),
        "weight_scale": ("F32", np.array(scale)),
        "input_scale": ("F32", np.array(np.float32(0.0123))),
    }
    return parts, e4m3_decode(codes) * np.float64(scale)


def encode_fp8_block(w, block=128):
    """fp8 with weight_block_size [128, 128]: a float32 multiplier a block, the last blocks possibly partial."""
    rows, columns = w.shape
    padded = np.zeros((-(-rows // block) * block, -(-columns // block) * block))
    padded[:rows, :columns] = w
    tiles = padded.reshape(padded.shape[0] // block, block, padded.shape[1] // block, block)
    scale = (np.abs(tiles).max(axis=(1, 3)) / E4M3_MAX).astype(np.float32)  # [ceil(out/128), ceil(in/128)]
    wide = np.repeat(np.repeat(scale.astype(np.float64), block, 0), block, 1)[:rows, :columns]
    codes = e4m3_encode(w / wide)
    return {"weight": ("F8_E4M3", codes), "weight_scale_inv": ("F32", scale)}, e4m3_decode(codes) * wide


def _nvfp4_codes(w, divisor):
    """w [out, in], divisor (a float) -> packed nibbles [out, in/2], block scale codes [out, in/16], and the values before
    the tensor scale."""
    groups = w.reshape(w.shape[0], -1, 16)
    scale_codes = e4m3_encode(np.clip(divisor * np.abs(groups).max(axis=2) / E2M1_MAX, 2.0**-9, E4M3_MAX))
    scale = e4m3_decode(scale_codes)[:, :, None]
    codes = e2m1_encode(groups * divisor / scale)
    values = (e2m1_decode(codes) * scale).reshape(w.shape)
    flat = codes.reshape(w.shape)
    return flat[:, 0::2] | (flat[:, 1::2] << 4), scale_codes, values


def encode_nvfp4_ct(w):
    """compressed-tensors nvfp4-pack-quantized: the tensor scale is a divisor."""
    divisor = np.float32(E4M3_MAX * E2M1_MAX / np.abs(w).max())
    packed, scales, values = _nvfp4_codes(w, np.float64(divisor))
    parts = {
        "weight_packed": ("U8", packed),
        "weight_scale": ("F8_E4M3", scales),
        "weight_global_scale": ("F32", np.array([divisor])),
        "input_global_scale": ("F32", np.array([37.5], np.float32)),
    }
    return parts, values / np.float64(divisor)


def encode_nvfp4_modelopt(w):
    """ModelOpt NVFP4: the tensor scale is a multiplier."""
    multiplier = np.float32(np.abs(w).max() / (E4M3_MAX * E2M1_MAX))
    packed, scales, values = _nvfp4_codes(w, 1.0 / np.float64(multiplier))
    parts = {
        "weight": ("U8", packed),
        "weight_scale": ("F8_E4M3", scales),
        "weight_scale_2": ("F32", np.array(multiplier)),
        "input_scale": ("F32", np.array(np.float32(0.0267))),
    }
    return parts, values * np.float64(multiplier)


def ggml_nvfp4_blocks(codes, scale_codes):
    """4-bit codes [out, in] and E4M3 scale codes [out, in/16] -> ggml's blocks of 64 [out, in/64*36]: four scale bytes, then
    per 16 elements eight bytes with element j in the low and element 8 + j in the high nibble."""
    rows, columns = codes.shape
    groups = codes.reshape(rows, columns // 16, 2, 8)
    nibbles = (groups[:, :, 0] | (groups[:, :, 1] << 4)).reshape(rows, columns // 64, 32)
    blocks = np.concatenate([scale_codes.reshape(rows, columns // 64, 4), nibbles], axis=2)
    return blocks.reshape(rows, columns // 64 * 36)


# ---- safetensors ----------------------------------------------------------------------------------------------------

_SAFETENSORS_DTYPES = {"F32": np.float32, "BF16": np.uint16, "F8_E4M3": np.uint8, "U8": np.uint8}


def write_safetensors(path, tensors):
    """tensors: {name: (dtype string, array)}, BF16 as uint16 and FP8 as uint8 bit patterns; written in that order."""
    header, offset = {"__metadata__": {"format": "pt"}}, 0
    for name, (dtype, array) in tensors.items():
        assert array.dtype == _SAFETENSORS_DTYPES[dtype], (name, dtype, array.dtype)
        header[name] = {
            "dtype": dtype,
            "shape": list(array.shape),
            "data_offsets": [offset, offset + array.nbytes],
        }
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as out:
        out.write(struct.pack("<Q", len(text)) + text)
        for _, array in tensors.values():
            out.write(np.ascontiguousarray(array).tobytes())


def read_safetensors(path):
    """{name: (dtype string, array)} of one file written as above."""
    data = Path(path).read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            begin, end = entry["data_offsets"]
            raw = np.frombuffer(
                data[8 + length + begin : 8 + length + end], _SAFETENSORS_DTYPES[entry["dtype"]]
            )
            tensors[name] = (entry["dtype"], raw.reshape(entry["shape"]))
    return tensors


# ---- GGUF v3 --------------------------------------------------------------------------------------------------------

GGUF_U32, GGUF_I32, GGUF_F32, GGUF_BOOL, GGUF_STRING, GGUF_ARRAY = 4, 5, 6, 7, 8, 9
GGML_F32, GGML_BF16, GGML_NVFP4 = 0, 30, 40
_ALIGNMENT = 32
_SCALAR = {GGUF_U32: "<I", GGUF_I32: "<i", GGUF_F32: "<f", GGUF_BOOL: "<?"}


def _gguf_string(text):
    data = text.encode()
    return struct.pack("<Q", len(data)) + data


def _gguf_plain(kind, value):
    return _gguf_string(value) if kind == GGUF_STRING else struct.pack(_SCALAR[kind], value)


def _gguf_value(kind, value):
    if not isinstance(value, list):
        return struct.pack("<I", kind) + _gguf_plain(kind, value)
    return struct.pack("<IIQ", GGUF_ARRAY, kind, len(value)) + b"".join(
        _gguf_plain(kind, item) for item in value
    )


def write_gguf(path, metadata, tensors):
    """metadata: [(key, value type, value or list)]; tensors: [(name, ggml type, array)], outermost dimension first,
    BF16 as uint16 bit patterns, NVFP4 as uint8 blocks (36 bytes for 64 elements of a row)."""
    head = [struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(metadata))]
    head += [_gguf_string(key) + _gguf_value(kind, value) for key, kind, value in metadata]
    offset = 0
    for name, kind, array in tensors:
        stored = {GGML_F32: np.float32, GGML_BF16: np.uint16, GGML_NVFP4: np.uint8}[kind]
        assert array.dtype == stored, (name, kind, array.dtype)
        row = array.shape[-1] // 36 * 64 if kind == GGML_NVFP4 else array.shape[-1]
        sizes = (row, *array.shape[-2::-1])
        head.append(_gguf_string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset))
        offset += array.nbytes + -array.nbytes % _ALIGNMENT
    text = b"".join(head)
    with open(path, "wb") as out:
        out.write(text + b"\0" * (-len(text) % _ALIGNMENT))
        for _, _, array in tensors:
            out.write(np.ascontiguousarray(array).tobytes() + b"\0" * (-array.nbytes % _ALIGNMENT))
