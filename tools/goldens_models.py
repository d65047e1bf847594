#!/usr/bin/env python3
"""Makes the golden files of the tiny models (tests/golden/models, tests/golden/quantised).

    goldens_models.py --llama-cpp SOURCE_TREE --llama-bin DIR_OF_LLAMA_QUANTIZE [--work DIR] [VARIANT ...]

For each variant of make_tiny_model.py:
  - Hugging Face transformers, every operation in float64 and eager, gives the logits of a fixed token sequence, hidden states,
    and a greedy continuation of a text prompt;
  - llama.cpp's own converter turns the Hugging Face folder into a GGUF, which must equal ours tensor for tensor and key for key;
  - for one variant an architecture llama.cpp's quantiser makes a small file, and transformers runs on its dequantised weights.
Needs torch, transformers, gguf, safetensors, llama-cpp-python; the tests need only what this script leaves behind.
"""

import argparse
import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers

from oracle_transformers import Oracle, checkpoint_weights, gguf_weights, kl_divergence
from tiny_gguf import gguf_tensors, write_tiny_gguf
from tiny_model import END_OF_TEXT, IM_END, VARIANTS, VOCABULARY, has_gguf, hash_normal, write_hf

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden"
PROMPT = "the engine reads the weights once and then answers"
GREEDY_TOKENS = 24
HIDDEN_POSITIONS = [0, 1, 63, 64, -1]

# How llama-quantize is told to make the committed file of each architecture: base type and exceptions (--tensor-type).
QUANTISED = {
    "llama": ("llama", "Q4_K_M", ["attn_q=q2_k", "attn_k=q3_k", "attn_v=q5_0", "attn_output=q5_1", "blk.0.ffn_gate=iq4_nl",
                                  "blk.1.ffn_gate=mxfp4", "blk.2.ffn_gate=q4_0", "ffn_up=iq4_xs", "blk.0.ffn_down=q4_1",
                                  "blk.1.ffn_down=q8_0", "blk.2.ffn_down=f16"]),
    "qwen3": ("qwen3", "Q5_K_M", []),
    "qwen3moe": ("qwen3moe", "Q4_K_M", []),
    "qwen35": ("qwen35-r2", "Q4_K_M", []),
    "qwen35moe": ("qwen35moe", "Q4_K_M", ["ffn_gate_exps=iq4_xs", "ffn_up_exps=q3_k", "ssm_out=q8_0"]),
}  # fmt: skip


def sha256(data):
    return hashlib.sha256(data).hexdigest()


def prompt_tokens(name, count):
    """A fixed sequence of ids for a variant, all of the vocabulary, control tokens included."""
    return (np.floor(np.abs(hash_normal("tokens of " + name, count)) * 1e6) % VOCABULARY).astype(np.int32)


# ---- Our GGUF against llama.cpp's converter -------------------------------------------------------------------------

_CONVERT = """
import sys
sys.path[:0] = [sys.argv[1], sys.argv[1] + "/gguf-py"]
from conversion.base import TextModel
pre = sys.argv[2]
TextModel.get_vocab_base_pre = lambda self, tokenizer: pre  # an untrained tokenizer has no known fingerprint
sys.argv = ["convert_hf_to_gguf.py", *sys.argv[3:]]
import convert_hf_to_gguf
convert_hf_to_gguf.main()
"""


def convert(llama_cpp, v, folder, out):
    """Runs llama.cpp's converter on a Hugging Face folder."""
    from tiny_tokenizer import tiny_tokenizer

    arguments = [str(folder), "--outfile", str(out), "--outtype", "bf16"]
    if v["arch"].startswith("qwen35") and not v.get("mtp"):
        arguments.append("--no-mtp")
    command = [sys.executable, "-c", _CONVERT, str(llama_cpp), tiny_tokenizer(v["arch"]).pre, *arguments]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        raise SystemExit(f"the converter failed on {folder}:\n{done.stderr[-3000:]}")


def ulps(a, b):
    """Largest distance of two float32 arrays of equal signs in units of the last place."""
    return int(np.abs(a.view(np.int32).astype(np.int64) - b.view(np.int32).astype(np.int64)).max())


def compare_gguf(ours, theirs):
    """Compares two GGUF files; any difference but the free text of general.* ends the script."""
    a, b = gguf.GGUFReader(ours), gguf.GGUFReader(theirs)
    mine, other = {t.name: t for t in a.tensors}, {t.name: t for t in b.tensors}
    if mine.keys() != other.keys():
        raise SystemExit(f"tensor names differ: {sorted(mine.keys() ^ other.keys())}")
    rows, off_by_ulps = {}, {}
    for name, x in mine.items():
        y = other[name]
        if (x.tensor_type, x.shape.tolist()) != (y.tensor_type, y.shape.tolist()):
            raise SystemExit(f"{name}: {x.tensor_type, x.shape} is not {y.tensor_type, y.shape}")
        if x.data.tobytes() != y.data.tobytes():
            distance = ulps(np.asarray(x.data), np.asarray(y.data)) if name.endswith("ssm_a") else 2
            if distance > 1:
                raise SystemExit(f"{name}: bytes differ from the converter's")
            off_by_ulps[name] = distance  # the exponential of two mathematical libraries
        rows[name] = [x.tensor_type.name, x.shape.tolist(), sha256(x.data.tobytes())]
    free = {
        "general.name",
        "general.size_label",
        "general.basename",
        "general.finetune",
        "general.version",
        "general.tags",
    }
    keys_a = {k: f for k, f in a.fields.items() if not k.startswith("GGUF.") and k not in free}
    keys_b = {k: f for k, f in b.fields.items() if not k.startswith("GGUF.") and k not in free}
    differing = [k for k in keys_a.keys() | keys_b.keys() if k not in keys_a or k not in keys_b
                 or keys_a[k].types != keys_b[k].types or keys_a[k].contents() != keys_b[k].contents()]  # fmt: skip
    if differing:
        raise SystemExit(f"metadata differs from the converter's: {sorted(differing)}")
    return {"tensors_equal_to_converter": len(rows) - len(off_by_ulps), "one_ulp_apart": sorted(off_by_ulps),
            "metadata_keys_equal": sorted(keys_a), "tensors": rows}  # fmt: skip


# ---- Goldens --------------------------------------------------------------------------------------------------------


def llama_cpp_logits(path, tokens):
    """llama.cpp's CPU logits after each token."""
    import llama_cpp

    model = llama_cpp.Llama(str(path), n_ctx=256, n_batch=256, logits_all=True, verbose=False, n_threads=1)
    model.eval(tokens.tolist())
    return model.scores[: len(tokens)].astype(np.float64)


def orientation(logits, other):
    top = logits.argmax(1) == other.argmax(1)
    return {"mean_kl": float(kl_divergence(logits, other).mean()), "top1": float(top.mean())}


def greedy(oracle, ids, count):
    """Greedy continuation without a cache up to an end token: ids, and the margin of the best over the second at each step, the
    end token's included."""
    ids, tokens, margins = list(ids), [], []
    for _ in range(count):
        logits = oracle.logits(np.array(ids))[-1]
        best = np.sort(logits)[-2:]
        margins.append(round(float(best[1] - best[0]), 6))
        token = int(logits.argmax())
        if token in (END_OF_TEXT, IM_END):
            break
        tokens.append(token)
        ids.append(token)
    return tokens, margins


def encode_prompt(folder):
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(folder / "tokenizer.json")).encode(PROMPT, add_special_tokens=False).ids


def save_goldens(out, oracle, tokens, folder):
    """Writes tokens.npy, logits.npy, hidden.npy (unless quantised) and greedy.json; returns float64 logits."""
    out.mkdir(parents=True, exist_ok=True)
    logits, hidden = oracle.logits_and_hidden(tokens)
    np.save(out / "tokens.npy", tokens)
    np.save(out / "logits.npy", logits.astype(np.float32))
    # [layers + 1, positions, hidden]: the embedding, then the residual stream after each layer, the last one normed
    np.save(out / "hidden.npy", hidden[:, HIDDEN_POSITIONS].astype(np.float32))
    ids = encode_prompt(folder)
    continuation, margins = greedy(oracle, ids, GREEDY_TOKENS)
    record = {"prompt": PROMPT, "prompt_ids": ids, "token_ids": continuation, "margins": margins}
    (out / "greedy.json").write_text(json.dumps(record) + "\n")
    return logits


def versions():
    import llama_cpp

    return {"torch": torch.__version__, "transformers": transformers.__version__, "gguf": "0.19.0",
            "llama-cpp-python": llama_cpp.__version__}  # fmt: skip


def write_manifest(out, content):
    """One line a key, and one a tensor, so that a difference shows where it is."""
    lines = []
    for key, value in content.items():
        if isinstance(value, dict) and len(value) > 8:
            rows = ",\n  ".join(f"{json.dumps(name)}: {json.dumps(row)}" for name, row in value.items())
            lines.append(f"{json.dumps(key)}: {{\n  {rows}\n }}")
        else:
            lines.append(f"{json.dumps(key)}: {json.dumps(value)}")
    (out / "manifest.json").write_text("{\n " + ",\n ".join(lines) + "\n}\n")


def variant_goldens(name, args):
    v = VARIANTS[name]
    folder, file = args.work / name, args.work / f"{name}.gguf"
    write_hf(v, folder)
    oracle = Oracle(folder, checkpoint_weights(folder, v))
    tokens = prompt_tokens(name, 70 if "layout" in v else 130)
    out = GOLDEN / "models" / name
    logits = save_goldens(out, oracle, tokens, folder)
    checkpoint = sha256((folder / "model.safetensors").read_bytes())
    manifest = {
        "variant": name,
        "versions": versions(),
        "logits_std": float(logits.std()),
        "safetensors_sha256": checkpoint,
    }
    if "experts" in v:
        manifest["smallest_router_margin"] = oracle.smallest_router_margin(tokens)
    if has_gguf(v):
        write_tiny_gguf(v, file)
        theirs = args.work / f"{name}.converter.gguf"
        convert(args.llama_cpp, v, folder, theirs)
        manifest |= {"gguf_sha256": sha256(file.read_bytes()), **compare_gguf(file, theirs)}
        back = gguf_weights(file, v)
        reference = checkpoint_weights(folder, v)
        worst = max(float((back[key] - reference[key]).abs().max()) for key in reference)
        if worst > 1e-6:
            raise SystemExit(f"{name}: GGUF order back to checkpoint order differs by {worst}")
        manifest["llama_cpp_cpu"] = orientation(logits, llama_cpp_logits(file, tokens))
    write_manifest(out, manifest)
    print(
        name,
        {k: manifest[k] for k in manifest if k in ("logits_std", "smallest_router_margin", "llama_cpp_cpu")},
        flush=True,
    )


def quantised_goldens(arch, args):
    variant, base, exceptions = QUANTISED[arch]
    v = VARIANTS[variant]
    folder, source = args.work / variant, args.work / f"{variant}.gguf"
    write_hf(v, folder)
    write_tiny_gguf(v, source)
    out = GOLDEN / "quantised"
    out.mkdir(parents=True, exist_ok=True)
    file = out / f"{arch}.gguf"
    options = [word for exception in exceptions for word in ("--tensor-type", exception)]
    command = [str(args.llama_bin / "llama-quantize"), *options, str(source), str(file), base, "2"]
    done = subprocess.run(
        command, capture_output=True, text=True, env={"LD_LIBRARY_PATH": str(args.llama_bin)}
    )
    if done.returncode != 0:
        raise SystemExit(f"llama-quantize failed: {done.stdout[-2000:]}{done.stderr[-2000:]}")
    oracle = Oracle(folder, gguf_weights(file, v))
    tokens = prompt_tokens(arch + " quantised", 70)
    logits = save_goldens(out / arch, oracle, tokens, folder)
    kinds = {}
    for tensor in gguf.GGUFReader(file).tensors:
        kinds[tensor.tensor_type.name] = kinds.get(tensor.tensor_type.name, 0) + 1
    manifest = {"arch": arch, "variant": variant, "base": base, "exceptions": exceptions, "versions": versions(),
                "sha256": sha256(file.read_bytes()), "bytes": file.stat().st_size, "types": kinds,
                "llama_cpp_cpu": orientation(logits, llama_cpp_logits(file, tokens))}  # fmt: skip
    if "experts" in v:
        manifest["smallest_router_margin"] = oracle.smallest_router_margin(tokens)
    write_manifest(out / arch, manifest)
    print(arch, manifest["bytes"], kinds, manifest["llama_cpp_cpu"], flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("variants", nargs="*", help="variants, or quantised:ARCH (default: all)")
    parser.add_argument("--llama-cpp", type=Path, required=True, help="llama.cpp source tree")
    parser.add_argument(
        "--llama-bin", type=Path, required=True, help="folder with llama-quantize and its libraries"
    )
    parser.add_argument("--work", type=Path, default=Path(tempfile.gettempdir()) / "tiny-models")
    args = parser.parse_args()
    torch.set_num_threads(1)  # a busy machine stalls at every barrier
    for name in args.variants or [*VARIANTS, *("quantised:" + arch for arch in QUANTISED)]:
        if name.startswith("quantised:"):
            quantised_goldens(name.removeprefix("quantised:"), args)
        else:
            variant_goldens(name, args)


if __name__ == "__main__":
    main()
