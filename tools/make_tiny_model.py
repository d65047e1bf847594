#!/usr/bin/env python3
"""Tiny random models with real head sizes, as a Hugging Face folder and as the GGUF that llama.cpp's converter makes of it.

    make_tiny_model.py VARIANT [--hf DIR] [--gguf FILE] [--shards N]        make_tiny_model.py --list

The bytes depend on the variant alone, so that a test recreates what the committed golden logits were computed from. It
needs numpy only. The golden script proved the GGUF equal, tensor for tensor and key for key, to the converter's output
(tests/golden/models/*/manifest.json).
How a weight follows from its name is told at the top of tiny_model.py.
"""

import argparse
import hashlib
from pathlib import Path

from tiny_gguf import write_tiny_gguf
from tiny_model import VARIANTS, has_gguf, write_hf


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("variant", nargs="?", choices=[*VARIANTS], metavar="VARIANT")
    parser.add_argument("--hf", metavar="DIR", help="write the Hugging Face folder")
    parser.add_argument("--gguf", metavar="FILE", help="write the GGUF")
    parser.add_argument("--shards", type=int, default=1, help="safetensors files of the folder (default 1)")
    parser.add_argument("--list", action="store_true", help="print the variants")
    args = parser.parse_args()
    if args.list or not args.variant:
        print("\n".join(VARIANTS))
        return
    v = VARIANTS[args.variant]
    written = []
    if args.hf:
        write_hf(v, args.hf, args.shards)
        written += sorted(path for path in Path(args.hf).iterdir() if path.is_file())
    if args.gguf:
        if not has_gguf(v):
            parser.error(f"{args.variant} is a checkpoint layout of safetensors and has no GGUF")
        write_tiny_gguf(v, args.gguf)
        written.append(Path(args.gguf))
    for path in written:
        print(hashlib.sha256(path.read_bytes()).hexdigest(), path)


if __name__ == "__main__":
    main()
