#!/usr/bin/env python3
"""Makes the seeds of the fuzz targets again: tests/fuzz/corpus/<target>/<name>, small right files and nearly right ones.

    fuzz_seeds.py [FOLDER]        (default tests/fuzz/corpus)

Files named by a hash are findings and inputs that a fuzzer kept; this script leaves them alone. It needs numpy. What a
target takes is told at its top (tests/fuzz/<target>_fuzz.cpp).
"""

import json
import struct
import sys
import tempfile
from pathlib import Path

import numpy as np

from tiny_gguf import write_tiny_gguf
from tiny_model import VARIANTS, write_hf
from tiny_tokenizer import tiny_tokenizer

ROOT = Path(__file__).resolve().parent.parent
PART_END = b"\x1e"    # kPartEnd of tests/fuzz/fuzz.h
GGUF_VARIANTS = ["llama", "qwen3moe", "qwen35-r2-mtp", "qwen35moe"]
FOLDER_VARIANTS = ["llama", "qwen35moe-unfused", "qwen35-r3-fp8-block", "qwen35-r3-nvfp4-ct", "qwen35-r3-nvfp4-modelopt"]


def compact(value):
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()


# ---- Models ---------------------------------------------------------------------------------------------------------


def gguf_seeds():
    """Files up to where their weights begin: the target puts zeros behind."""
    with tempfile.TemporaryDirectory() as folder:
        for variant in GGUF_VARIANTS:
            path = Path(folder) / "tiny.gguf"
            v = VARIANTS[variant]
            write_tiny_gguf(v, path)
            data = path.read_bytes()
            yield variant, data[: header_bytes(data)]
    yield "empty-3", struct.pack("<4sIQQ", b"GGUF", 3, 0, 0)
    yield "empty-1", struct.pack("<4sIII", b"GGUF", 1, 0, 0)
    yield "one-of-each", one_of_each()


class Cursor:
    WIDTH = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}

    def __init__(self, data):
        self.data, self.at = data, 0

    def number(self, form):
        value = struct.unpack_from("<" + form, self.data, self.at)[0]
        self.at += struct.calcsize(form)
        return value

    def skip_text(self):
        length = self.number("Q")  # moves `at`
        self.at += length

    def skip_value(self, kind):
        if kind == 8:
            self.skip_text()
        elif kind == 9:
            inner, count = self.number("I"), self.number("Q")
            for _ in range(count):
                self.skip_value(inner)
        else:
            self.at += self.WIDTH[kind]


def header_bytes(data):
    """Where the weights of a GGUF begin."""
    cursor = Cursor(data)
    cursor.at = 8
    tensors, keys = cursor.number("Q"), cursor.number("Q")
    for _ in range(keys):
        cursor.skip_text()
        cursor.skip_value(cursor.number("I"))
    for _ in range(tensors):
        cursor.skip_text()
        dimensions = cursor.number("I")
        cursor.at += 8 * dimensions + 4 + 8
    return -(-cursor.at // 32) * 32


def one_of_each():
    """A key of every value type, an array of each, and one small tensor of every type that has whole blocks of 256."""
    text = lambda s: struct.pack("<Q", len(s)) + s.encode()  # noqa: E731
    values = {0: b"\1", 1: b"\xff", 2: b"\1\0", 3: b"\xff\xff", 4: b"\1\0\0\0", 5: b"\xff" * 4, 6: struct.pack("<f", 1.5),
              7: b"\1", 8: text("a"), 10: b"\1" + b"\0" * 7, 11: b"\xff" * 8, 12: struct.pack("<d", 1.5)}
    keys = [text(f"k{kind}") + struct.pack("<I", kind) + value for kind, value in values.items()]
    keys += [text(f"a{kind}") + struct.pack("<IIQ", 9, kind, 2) + 2 * value for kind, value in values.items()]
    sizes = {0: 1024, 1: 512, 2: 144, 3: 160, 6: 176, 7: 192, 8: 272, 10: 84, 11: 110, 12: 144, 13: 176, 14: 210, 20: 144,
             23: 136, 30: 512, 39: 136}
    tensors, offset = [], 0
    for kind, size in sizes.items():
        tensors.append(text(f"t{kind}") + struct.pack("<IQIQ", 1, 256, kind, offset))
        offset += -(-size // 32) * 32
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tensors), len(keys)) + b"".join(keys + tensors)
    return head + b"\0" * (-len(head) % 32 + offset)


def safetensors_seeds():
    """config.json, no index, and the header; the target puts zeros behind. One with an index, one tiny and whole."""
    with tempfile.TemporaryDirectory() as folder:
        for variant in FOLDER_VARIANTS:
            write_hf(VARIANTS[variant], folder)
            config = json.loads((Path(folder) / "config.json").read_text())
            data = (Path(folder) / "model.safetensors").read_bytes()
            header = data[: 8 + struct.unpack("<Q", data[:8])[0]]
            yield variant, PART_END.join([compact(config), b"", header])
    head = compact({"__metadata__": {"format": "pt"}, "a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}})
    whole = struct.pack("<Q", len(head)) + head + bytes(8)
    index = compact({"weight_map": {"a": "model.safetensors"}})
    yield "indexed", PART_END.join([b'{"model_type":"llama"}', index, whole])


# ---- Text -----------------------------------------------------------------------------------------------------------


def tokenizer_seeds():
    for arch in ("llama", "qwen3", "qwen35"):
        files = tiny_tokenizer(arch).hf_files()
        tokenizer, config = files["tokenizer.json"], files["tokenizer_config.json"]
        model = tokenizer["model"]
        model["vocab"] = {token: i for token, i in model["vocab"].items() if i < 256 + 12}
        model["merges"] = model["merges"][:12]
        for i, token in enumerate(tokenizer["added_tokens"]):
            token["id"] = 256 + 12 + i
        del config["added_tokens_decoder"], config["chat_template"]
        yield arch, PART_END.join([compact(config), compact({"eos_token_id": [270, 269]}), compact(tokenizer)])
    small = {"version": "1.0", "added_tokens": [{"id": 2, "content": "<s>", "special": True}], "normalizer": None,
             "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": True}, "post_processor": {
                 "type": "TemplateProcessing", "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}},
                                                          {"Sequence": {"id": "A", "type_id": 0}}],
                 "pair": [], "special_tokens": {"<s>": {"id": "<s>", "ids": [2], "tokens": ["<s>"]}}},
             "decoder": {"type": "ByteLevel"}, "model": {"type": "BPE", "vocab": {"a": 0, "b": 1, "ab": 3},
                                                         "merges": ["a b"]}}
    yield "post-processor", PART_END.join([b"", b"", compact(small)])
    for kind in ("WordPiece", "Unigram", "WordLevel"):
        model = {"type": kind, "vocab": [["a", 0.5]] if kind == "Unigram" else {"a": 0}, "unk_token": "a", "unk_id": 0,
                 "continuing_subword_prefix": "##", "max_input_chars_per_word": 9}
        yield kind.lower(), PART_END.join([b"", b"", compact({**small, "model": model, "post_processor": None})])


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi <|im_end|>"},
            {"role": "assistant", "content": "", "tool_calls": [
                {"type": "function", "function": {"name": "f", "arguments": "{\"a\": [1, null]}"}}]},
            {"role": "tool", "content": "5"}, {"role": "user", "content": [{"type": "text", "text": "and?"}]}]
TOOLS = [{"type": "function", "function": {"name": "f", "description": "d", "parameters": {
    "type": "object", "properties": {"a": {"type": "array"}}}}}]
TEMPLATES = {
    "loop": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
            "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}",
    "tools": "{%- if tools %}{{- '<tools>' }}{%- for t in tools %}{{ t | tojson }}{%- endfor %}{%- endif %}"
             "{%- for m in messages %}{%- if m.tool_calls %}{%- for c in m.tool_calls %}{{ c.function.name }}"
             "{{ c.function.arguments | tojson(indent=2) }}{%- endfor %}{%- elif m.content is string %}{{ m.content | trim }}"
             "{%- else %}{%- for p in m.content %}{{ p.text }}{%- endfor %}{%- endif %}{%- endfor %}",
    "macros": "{% macro say(x, y=1) %}[{{ x }}{{ y }}]{% endmacro %}{% set ns = namespace(last=-1, seen=false) %}"
              "{% for m in messages[::-1] %}{% if not ns.seen and m.role == 'user' %}{% set ns.last = loop.index0 %}"
              "{% set ns.seen = true %}{% endif %}{{ say(m.role, y=ns.last) }}{% if loop.last %}{% break %}{% endif %}{% endfor %}",
    "filters": "{{ messages | length }}{{ messages | map(attribute='role') | join(', ') | upper }}{{ strftime_now('%d %b %Y') }}"
               "{{ messages | selectattr('role', 'equalto', 'user') | list | first | items | list }}{{ '%s' | format(1) }}"
               "{{ 'abc'.split('b')[-1].strip() }}{{ range(3) | list | tojson }}{{ {'a': 1}.items() | list }}{{ x is defined }}",
    "refuses": "{% if messages[0].role != 'user' %}{{ raise_exception('no ' ~ messages[0].role) }}{% endif %}",
}


def template_seeds():
    for name, source in TEMPLATES.items():
        parts = [compact(MESSAGES), compact(TOOLS) if name == "tools" else b"", compact({"enable_thinking": False}), source.encode()]
        yield name, PART_END.join(parts)


def json_seeds():
    yield "values", compact([None, True, False, 0, -0.0, 1.5e300, 2**63, -(2**63), 1e-320, "\u00e9\ud7ff\U0001f600\n\0", {}, [[]]])
    yield "twice", b'{"a":1,"a":{"a":2}}'
    yield "deep", b"[" * 70 + b"]" * 70
    yield "escapes", rb'"\u0041\ud83d\ude00\ud83d \/\b\f"'
    yield "request", compact({"model": "m", "messages": MESSAGES, "tools": TOOLS, "temperature": 0.5, "stop": ["\n"]})
    yield "spaces", b' \t\r\n{ "a" : [ 1 , 2.50 , -3e+2 ] } \n'


# ---- Arrays and sessions --------------------------------------------------------------------------------------------


def npy_header(version, text):
    length = struct.pack("<H" if version == 1 else "<I", len(text))
    return b"\x93NUMPY" + bytes([version, 0]) + length + text


def npy_seeds():
    for name, dtype in (("int32", "<i4"), ("int64", "<i8"), ("float", "<f4"), ("big", ">i4")):
        with tempfile.NamedTemporaryFile(suffix=".npy") as file:
            np.save(file.name, np.arange(5).astype(dtype))
            yield name, Path(file.name).read_bytes()
    yield "version-2", npy_header(2, b"{'descr': '<i4', 'fortran_order': False, 'shape': (1,), }\n") + bytes(4)
    yield "version-3", npy_header(3, b'{"shape":(2),"descr":"<i8","fortran_order":True}') + bytes(16)
    yield "matrix", npy_header(1, b"{'descr': '<i4', 'fortran_order': False, 'shape': (1, 2), }") + bytes(8)


def imatrix_seeds():
    """One of each format: two matrices, one of them of two experts."""
    text = lambda s: struct.pack("<Q", len(s)) + s.encode()  # noqa: E731
    keys = [text("general.type") + struct.pack("<I", 8) + text("imatrix"),
            text("imatrix.chunk_count") + struct.pack("<II", 4, 5),
            text("imatrix.datasets") + struct.pack("<IIQ", 9, 8, 1) + text("calibration.txt")]
    tables, data = [], b""
    for name, columns, experts in (("blk.0.attn_q.weight", 4, 1), ("blk.0.ffn_up_exps.weight", 3, 2)):
        for suffix, sizes, values in ((".in_sum2", (columns, experts), range(columns * experts)), (".counts", (1, experts), range(experts))):
            data += b"\0" * (-len(data) % 32)
            tables.append(text(name + suffix) + struct.pack("<I2QIQ", 2, *sizes, 0, len(data)))
            data += struct.pack(f"<{len(values)}f", *values)
    head = struct.pack("<4sIQQ", b"GGUF", 3, len(tables), len(keys)) + b"".join(keys + tables)
    yield "gguf", head + b"\0" * (-len(head) % 32) + data
    entries = b"".join(struct.pack("<i", len(name)) + name + struct.pack(f"<ii{n}f", calls, n, *range(n))
                       for name, calls, n in ((b"blk.0.attn_q.weight", 3, 4), (b"output.weight", 0, 2)))
    yield "headerless", struct.pack("<i", 2) + entries + struct.pack("<ii", 7, 4) + b"text"
    yield "headerless-short", struct.pack("<i", 2) + entries


# Of the pools of session_fuzz.cpp: one key/value head of width 1, one recurrent layer.
PAGE_BYTES, STATE_BYTES, IDENTITY, PAGE_TOKENS = 512, 576, 7, 64
WORD = 2**64 - 1


def hash_bytes(seed, data):
    """As hash_bytes of engine/cache_file.cpp."""
    value = seed ^ (0x9E3779B97F4A7C15 + len(data)) & WORD
    words = [data[at : at + 8] for at in range(0, len(data) - 7, 8)] + [data[len(data) // 8 * 8 :]]
    for word in words:
        value = (value ^ int.from_bytes(word, "little")) * 0xFF51AFD7ED558CCD & WORD
        value ^= value >> 32
    return value


def session(nodes):
    """nodes: [(parent, tokens, salt, whether it has a state)]."""
    head = b"SPRKKEEP" + struct.pack("<IIQqqq", 1, 0, IDENTITY, PAGE_BYTES, STATE_BYTES, len(nodes))
    data = head + struct.pack("<Q", hash_bytes(0, head))
    for i, (parent, tokens, salt, has_state) in enumerate(nodes):
        record = struct.pack("<qiiii", parent, len(tokens), len(salt), has_state, 0)
        parts = [salt, struct.pack(f"<{len(tokens)}i", *tokens), bytes(PAGE_BYTES), bytes(STATE_BYTES if has_state else 0)]
        value = hash_bytes(i, record)
        for part in parts:
            value = hash_bytes(value, part)
        data += record + struct.pack("<Q", value) + b"".join(parts)
    return data


def session_seeds():
    page = range(PAGE_TOKENS)
    yield "nothing", session([])
    yield "one-page", session([(-1, page, b"", 0)])
    yield "tail-with-state", session([(-1, [1, 2, 3], b"salt", 1)])
    yield "branches", session([(-1, page, b"", 1), (0, page, b"", 0), (0, [5, 6], b"", 1), (1, [7], b"", 1)])
    yield "two-salts", session([(-1, page, b"a", 0), (-1, page, b"b", 1), (1, page, b"", 0)])


SEEDS = {"gguf": gguf_seeds, "safetensors": safetensors_seeds, "tokenizer_json": tokenizer_seeds,
         "chat_template": template_seeds, "json": json_seeds, "npy": npy_seeds, "imatrix": imatrix_seeds, "session": session_seeds}


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests" / "fuzz" / "corpus"
    for target, seeds in SEEDS.items():
        folder = root / target
        folder.mkdir(parents=True, exist_ok=True)
        for name, data in seeds():
            (folder / name).write_bytes(data)
        files = [path.stat().st_size for path in folder.iterdir()]
        print(f"{target}: {len(files)} files, {sum(files)} bytes")


if __name__ == "__main__":
    main()
