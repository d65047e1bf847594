#!/usr/bin/env python3
"""Makes the golden files of SmolLM2-135M-Instruct Q4_1 (tests/golden/smollm2).

    goldens_smollm2.py MODEL.gguf --llama-bin DIR_OF_LLAMA_PERPLEXITY

  greedy.json      raw prompts as ids; greedy tokens and the margin of the best over the second logit at each step, from
                   transformers in float32 on the dequantised weights, and from llama-cpp-python, which rounds activations to int8
  perplexity.json  llama-perplexity's figure on tests/data/text.txt with its settings, and the same sum by transformers
  text_tokens.npy  int32 ids of that text, for the tests that have no tokenizer
  window.npz       the first 512 tokens of the text: transformers' best id, its margin, and the log-probability of the next token
Needs torch, transformers, gguf and llama-cpp-python; the tests need only what this script leaves behind.
"""

import argparse
import hashlib
import json
import math
import re
import subprocess
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

from oracle_transformers import gguf_values
from tiny_gguf import gguf_name

ROOT = Path(__file__).resolve().parent.parent
OUT = ROOT / "tests" / "golden" / "smollm2"
TEXT = ROOT / "tests" / "data" / "text.txt"
TOKENS = 64
CHUNK = 512
ENDS = (0, 2)  # <|endoftext|>, <|im_end|>

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a village by the sea,",
    "def fibonacci(n):\n",
    "Water boils at",
    "The three laws of thermodynamics are",
    "<|im_start|>user\nWhat is the largest planet?<|im_end|>\n<|im_start|>assistant\n",
    "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n<|im_start|>user\nName three colours.<|im_end|>\n<|im_start|>assistant\n",
    "1, 1, 2, 3, 5, 8, 13,",
    "Dear Sir or Madam,\n\n",
    "In 1969, the first",
    "SELECT name, age FROM users WHERE",
    "A list of fruits:\n- apple\n- banana\n-",
    "The recipe needs flour, eggs and",
    "Photosynthesis is the process by which",
    "Il était une fois",
    "Die Hauptstadt von Deutschland ist",
    "#include <stdio.h>\n\nint main(void) {\n",
    '{"name": "Alice", "age": 30, "city":',
    "Q: How many legs does a spider have?\nA:",
    "The quick brown fox jumps over the lazy dog. The quick brown",
    "日本の首都は",
    "If x + 3 = 10, then x =",
    "To be, or not to be, that is",
    "The engine reads its weights once for every token, and",
]


def field(reader, key):
    return reader.fields[key].contents()


def load_transformers(path):
    """LlamaForCausalLM in float32 on the weights that the gguf package dequantises, rotary rows back in halves."""
    reader = gguf.GGUFReader(path)
    get = lambda key: field(reader, "llama." + key)  # noqa: E731
    heads, kv_heads, layers = get("attention.head_count"), get("attention.head_count_kv"), get("block_count")
    config = transformers.LlamaConfig(
        vocab_size=len(field(reader, "tokenizer.ggml.tokens")),
        hidden_size=get("embedding_length"),
        intermediate_size=get("feed_forward_length"),
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        max_position_embeddings=get("context_length"),
        rms_norm_eps=get("attention.layer_norm_rms_epsilon"),
        rope_parameters={"rope_type": "default", "rope_theta": get("rope.freq_base")},
        tie_word_embeddings=True,
    )
    config._attn_implementation = "eager"
    model = transformers.LlamaForCausalLM._from_config(
        config, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    values, weights = gguf_values(path), {}
    for name in model.state_dict():
        if name == "lm_head.weight":
            continue
        w = values.pop(gguf_name({"arch": "llama", "layers": layers}, name))
        if name.endswith(("q_proj.weight", "k_proj.weight")):
            count = heads if "q_proj" in name else kv_heads
            w = np.swapaxes(w.reshape(count, -1, 2, w.shape[1]), 1, 2).reshape(w.shape)
        weights[name] = torch.from_numpy(np.ascontiguousarray(w)).float()
    if values:
        raise SystemExit(f"tensors that nobody used: {sorted(values)}")
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected and [*missing] in ([], ["lm_head.weight"]), (missing, unexpected)
    model.tie_weights()
    return model


def greedy(step, ids):
    """Greedy tokens up to an end token, and margins; step(new ids) gives the logits after the last of them."""
    tokens, margins, new = [], [], ids
    for _ in range(TOKENS):
        logits = step(new)
        second, first = np.sort(logits)[-2:]
        best = int(logits.argmax())
        margins.append(round(float(first - second), 5))
        if best in ENDS:
            break
        tokens.append(best)
        new = [best]
    return {"token_ids": tokens, "margins": margins}


def transformers_step(model):
    cache = None

    def step(new):
        nonlocal cache
        with torch.no_grad():
            result = model(torch.tensor([new]), past_key_values=cache, use_cache=True)
        cache = result.past_key_values
        return result.logits[0, -1].numpy()

    return step


def llama_cpp_step(model):
    model.reset()

    def step(new):
        model.eval(new)
        return model.scores[model.n_tokens - 1].copy()

    return step


def first_difference(a, b):
    same = [x == y for x, y in zip(a, b)]
    return same.index(False) if False in same else None


def greedy_goldens(path, model):
    import llama_cpp

    peer = llama_cpp.Llama(str(path), n_ctx=512, logits_all=True, verbose=False, n_threads=1)
    rows = []
    for prompt in PROMPTS:
        ids = peer.tokenize(prompt.encode(), add_bos=False, special=True)
        row = {"prompt": prompt, "prompt_ids": ids, "transformers": greedy(transformers_step(model), ids)}
        row["llama_cpp"] = greedy(llama_cpp_step(peer), ids)
        at = first_difference(row["transformers"]["token_ids"], row["llama_cpp"]["token_ids"])
        close = next((i for i, m in enumerate(row["llama_cpp"]["margins"]) if m < 0.6), None)
        print(
            len(ids),
            len(row["transformers"]["token_ids"]),
            "parts at",
            at,
            "first llama.cpp margin < 0.6 at",
            close,
            flush=True,
        )
        rows.append(row)
    lines = ",\n ".join(json.dumps(row, ensure_ascii=False) for row in rows)
    (OUT / "greedy.json").write_text(f"[\n {lines}\n]\n", encoding="utf-8")


def text_ids(path):
    import llama_cpp

    peer = llama_cpp.Llama(str(path), vocab_only=True, verbose=False)
    return np.array(peer.tokenize(TEXT.read_bytes(), add_bos=False, special=False), np.int32)


def log_probabilities(model, ids):
    """float32 logits of one window and the log-probability of each next token (float64)."""
    with torch.no_grad():
        logits = model(torch.tensor(ids[None].astype(np.int64)), use_cache=False).logits[0]
    log_p = torch.log_softmax(logits.double(), -1)
    following = log_p[torch.arange(len(ids) - 1), torch.tensor(ids[1:].astype(np.int64))]
    return logits.numpy(), following.numpy()


def perplexity_goldens(path, model, llama_bin):
    command = [
        str(llama_bin / "llama-perplexity"),
        "-m",
        str(path),
        "-f",
        str(TEXT),
        "-c",
        str(CHUNK),
        "-t",
        "1",
    ]
    done = subprocess.run(command, capture_output=True, text=True, env={"LD_LIBRARY_PATH": str(llama_bin)})
    final = re.search(r"Final estimate: PPL = ([0-9.]+) \+/- ([0-9.]+)", done.stdout + done.stderr)
    if not final:
        raise SystemExit("llama-perplexity gave no figure:\n" + (done.stdout + done.stderr)[-2000:])
    ids = text_ids(path)
    np.save(OUT / "text_tokens.npy", ids)
    chunks, total, count = len(ids) // CHUNK, 0.0, 0
    for chunk in range(chunks):
        window = ids[chunk * CHUNK : (chunk + 1) * CHUNK]
        logits, following = log_probabilities(model, window)
        total -= following[CHUNK // 2 :].sum()  # llama-perplexity scores the second half of each chunk
        count += len(following[CHUNK // 2 :])
        if chunk == 0:
            best = np.sort(logits, 1)[:, -2:]
            np.savez_compressed(OUT / "window.npz", tokens=window, best=logits.argmax(1).astype(np.int32),
                                margin=(best[:, 1] - best[:, 0]).astype(np.float32),
                                following=following.astype(np.float32))  # fmt: skip
    record = {
        "text_sha256": hashlib.sha256(TEXT.read_bytes()).hexdigest(), "tokens": len(ids), "ctx": CHUNK, "chunks": chunks,
        "scored_tokens": count, "bos": False, "llama_perplexity": float(final[1]), "llama_perplexity_error": float(final[2]),
        "transformers_float32": round(math.exp(total / count), 6),
    }  # fmt: skip
    print(record, flush=True)
    (OUT / "perplexity.json").write_text(json.dumps(record, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument(
        "--llama-bin", type=Path, required=True, help="folder with llama-perplexity and its libraries"
    )
    args = parser.parse_args()
    torch.set_num_threads(1)  # a busy machine stalls at every barrier
    OUT.mkdir(parents=True, exist_ok=True)
    model = load_transformers(args.model)
    perplexity_goldens(args.model, model, args.llama_bin)
    greedy_goldens(args.model, model)


if __name__ == "__main__":
    main()
