#!/usr/bin/env python3
"""An independent float64 forward in numpy of llama, qwen3, qwen3moe, qwen35 and qwen35moe, for tiny models.

    oracle.py perplexity MODEL --tokens IDS.npy --logits-out OUT.npy
    oracle.py run MODEL --raw --temp 0 -n N --json -p PROMPT

It takes the arguments of the binary that the golden tests use, so `pytest tests/golden/test_models.py --binary tools/oracle.py`
checks the tests and the goldens themselves: transformers and this file are two oracles that share no code. Every tensor is
used in the order of its source: in a folder rotary halves, value head h with key head h // R, norms as 1 + w; in a GGUF
adjacent rotary pairs for llama, value head h with key head h % n_k, norms as they are. MODEL is a GGUF or a folder.
"""

import argparse
import json
import re
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from tokenizers import Tokenizer

import oracle_formats as formats
from tiny_gguf import gguf_name
from tiny_model import END_OF_TEXT, IM_END


@dataclass
class Model:
    """Tensors under GGUF names in float64, and what the config says. in_folder: checkpoint order, otherwise GGUF order."""

    tensors: dict
    arch: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    rotary: int
    theta: float
    eps: float
    top_k: int
    n_k: int
    n_v: int
    in_folder: bool
    tokenizer: object

    @property
    def hybrid(self):
        return self.arch.startswith("qwen35")


# ---- Loading --------------------------------------------------------------------------------------------------------


def gguf_model(path):
    reader = gguf.GGUFReader(path)
    fields = {key: field.contents() for key, field in reader.fields.items()}
    arch = fields["general.architecture"]
    get = lambda key, default=0: fields.get(f"{arch}.{key}", default)  # noqa: E731
    tensors = {}
    for t in reader.tensors:
        values = gguf.quants.dequantize(t.data, t.tensor_type)
        tensors[t.name] = values.reshape(t.shape[::-1].tolist()).astype(np.float64)
    for name in [
        name for name in tensors if name.endswith(".scale")
    ]:  # an NVFP4 matrix has one, experts have E
        weight = name.removesuffix("scale") + "weight"
        shape = (-1, 1, 1) if tensors[weight].ndim == 3 else (1, 1)
        tensors[weight] = tensors[weight] * tensors[name].reshape(shape)
    head = get("attention.key_length", get("embedding_length") // get("attention.head_count"))
    return Model(
        tensors, arch, get("block_count") - get("nextn_predict_layers"), get("attention.head_count"), get("attention.head_count_kv"),
        head, get("rope.dimension_count", head), get("rope.freq_base"), get("attention.layer_norm_rms_epsilon"),
        get("expert_used_count"), get("ssm.group_count"), get("ssm.time_step_rank"), False, gguf_tokenizer(fields),
    )  # fmt: skip


def gguf_tokenizer(fields):
    """Vocabulary and merges from GGUF metadata; the pre-tokeniser is good for plain words only, as the golden prompt is."""
    from tiny_tokenizer import TinyTokenizer

    file = TinyTokenizer("llama").hf_files()["tokenizer.json"]
    normal = [
        t
        for t, kind in zip(fields["tokenizer.ggml.tokens"], fields["tokenizer.ggml.token_type"])
        if kind == 1
    ]
    file["model"]["vocab"] = {token: i for i, token in enumerate(normal)}
    file["model"]["merges"] = [merge.split(" ") for merge in fields["tokenizer.ggml.merges"]]
    return Tokenizer.from_str(json.dumps(file))


def stored_numbers(entry):
    dtype, array = entry
    decode = {"BF16": formats.bf16_decode, "F8_E4M3": formats.e4m3_decode}
    return decode.get(dtype, np.asarray)(array).astype(np.float64) if dtype != "U8" else array


def nvfp4(packed, scale):
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)
    return formats.e2m1_decode(codes) * np.repeat(scale, 16, 1)


def decode_layouts(stored):
    """{name: float64} with the companions of quantised linears folded in (specification by tensor names)."""
    result = {}
    for name, w in stored.items():
        stem, _, suffix = name.rpartition(".")
        scale = lambda kind: stored.get(f"{stem}.{kind}")  # noqa: E731
        if suffix == "weight_packed":
            result[stem + ".weight"] = nvfp4(w, scale("weight_scale")) / scale("weight_global_scale")
        elif suffix == "weight" and scale("weight_scale_2") is not None:
            result[name] = nvfp4(w, scale("weight_scale")) * scale("weight_scale_2")
        elif suffix == "weight" and scale("weight_scale_inv") is not None:
            blocks = np.repeat(np.repeat(scale("weight_scale_inv"), 128, 0), 128, 1)
            result[name] = w * blocks[: w.shape[0], : w.shape[1]]
        elif suffix == "weight" and scale("weight_scale") is not None:
            result[name] = w * scale("weight_scale")
        elif "_scale" not in suffix:
            result[name] = w
    return result


def folder_model(path):
    config = json.loads((path / "config.json").read_text())
    config = config.get("text_config", config)
    arch = {"qwen3_moe": "qwen3moe", "qwen3_5_text": "qwen35", "qwen3_5_moe_text": "qwen35moe"}.get(
        config["model_type"], config["model_type"]
    )
    stored = {}
    for file in sorted(path.glob("*.safetensors")):
        stored |= {name: stored_numbers(entry) for name, entry in formats.read_safetensors(file).items()}
    named = {"arch": arch, "layers": config["num_hidden_layers"]}
    tensors, experts = {}, {}
    for name, w in decode_layouts(stored).items():
        name = name.replace("model.language_model.", "model.")
        if part := re.fullmatch(
            r"model\.layers\.(\d+)\.mlp\.experts\.(\d+)\.(gate|up|down)_proj\.weight", name
        ):
            experts.setdefault(f"blk.{part[1]}.ffn_{part[3]}_exps.weight", {})[int(part[2])] = w
        elif name.endswith("experts.gate_up_proj"):
            at, half = f"blk.{name.split('.')[2]}.", w.shape[1] // 2
            tensors |= {at + "ffn_gate_exps.weight": w[:, :half], at + "ffn_up_exps.weight": w[:, half:]}
        else:
            tensors[gguf_name(named, name)] = w
    tensors |= {name: np.stack([parts[e] for e in range(len(parts))]) for name, parts in experts.items()}
    heads = config["num_attention_heads"]
    head = config.get("head_dim", config["hidden_size"] // heads)
    rope = config.get("rope_parameters", config)
    return Model(
        tensors, arch, config["num_hidden_layers"], heads, config["num_key_value_heads"], head,
        int(head * rope.get("partial_rotary_factor", 1)), rope["rope_theta"], config["rms_norm_eps"],
        config.get("num_experts_per_tok", 0), config.get("linear_num_key_heads", 0), config.get("linear_num_value_heads", 0),
        True, Tokenizer.from_file(str(path / "tokenizer.json")),
    )  # fmt: skip


# ---- Forward --------------------------------------------------------------------------------------------------------


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def silu(x):
    return x * sigmoid(x)


def norm(m, x, name):
    """RMSNorm over the last axis."""
    w = m.tensors[name]
    plus1 = m.hybrid and m.in_folder and not name.endswith("ssm_norm.weight")
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + m.eps) * (w + 1 if plus1 else w)


def rotate(m, x):
    """Rotary embedding of x [T, heads, d] at positions 0..T-1."""
    half = m.rotary // 2
    angle = np.arange(len(x))[:, None] * m.theta ** (-np.arange(half) / half)  # [T, half]
    turn = np.exp(1j * angle)[:, None]
    result = x.copy()
    if m.arch == "llama" and not m.in_folder:
        turned = (x[..., 0 : m.rotary : 2] + 1j * x[..., 1 : m.rotary : 2]) * turn
        result[..., 0 : m.rotary : 2], result[..., 1 : m.rotary : 2] = turned.real, turned.imag
    else:
        turned = (x[..., :half] + 1j * x[..., half : m.rotary]) * turn
        result[..., :half], result[..., half : m.rotary] = turned.real, turned.imag
    return result


def attention(m, x, at):
    """Causal attention of x [T, D], with an output gate in the hybrid family."""
    t, d = len(x), m.head_dim
    q = (x @ m.tensors[at + "attn_q.weight"].T).reshape(t, m.heads, -1)
    k = (x @ m.tensors[at + "attn_k.weight"].T).reshape(t, m.kv_heads, d)
    v = (x @ m.tensors[at + "attn_v.weight"].T).reshape(t, m.kv_heads, d)
    gate = q[..., d:]
    q = q[..., :d]
    if m.arch != "llama":
        q, k = norm(m, q, at + "attn_q_norm.weight"), norm(m, k, at + "attn_k_norm.weight")
    q, k = rotate(m, q), rotate(m, k)
    out = np.empty((t, m.heads, d))
    for h in range(m.heads):
        g = h // (m.heads // m.kv_heads)
        score = np.where(np.tri(t, dtype=bool), q[:, h] @ k[:, g].T / np.sqrt(d), -np.inf)
        p = np.exp(score - score.max(1, keepdims=True))
        out[:, h] = p / p.sum(1, keepdims=True) @ v[:, g]
    if m.hybrid:
        out = out * sigmoid(gate)
    return out.reshape(t, -1) @ m.tensors[at + "attn_output.weight"].T


def delta_net(m, x, at):
    """Gated DeltaNet of x [T, D], token by token."""
    t, keys = len(x), 128 * m.n_k
    mixed = np.concatenate([np.zeros((3, 2 * keys + 128 * m.n_v)), x @ m.tensors[at + "attn_qkv.weight"].T])
    taps = m.tensors[at + "ssm_conv1d.weight"].reshape(-1, 4)
    mixed = silu(sum(mixed[j : j + t] * taps[:, j] for j in range(4)))
    q, k = (part.reshape(t, m.n_k, 128) for part in (mixed[:, :keys], mixed[:, keys : 2 * keys]))
    q, k = (u / np.sqrt((u * u).sum(-1, keepdims=True) + 1e-6) for u in (q, k))
    v = mixed[:, 2 * keys :].reshape(t, m.n_v, 128)
    z = (x @ m.tensors[at + "attn_gate.weight"].T).reshape(t, m.n_v, 128)
    beta = sigmoid(x @ m.tensors[at + "ssm_beta.weight"].T)
    a = m.tensors[at + "ssm_a"]
    step = np.logaddexp(0, x @ m.tensors[at + "ssm_alpha.weight"].T + m.tensors[at + "ssm_dt.bias"])
    decay = np.exp((-np.exp(a) if m.in_folder else a) * step)
    h = np.arange(m.n_v)
    source = h // (m.n_v // m.n_k) if m.in_folder else h % m.n_k
    state, out = np.zeros((m.n_v, 128, 128)), np.empty((t, m.n_v, 128))
    for i in range(t):
        state *= decay[i][:, None, None]
        known = np.einsum("hkv,hk->hv", state, k[i, source])
        state += k[i, source][:, :, None] * (beta[i][:, None] * (v[i] - known))[:, None, :]
        out[i] = np.einsum("hkv,hk->hv", state, q[i, source]) / np.sqrt(128)
    out = norm(m, out, at + "ssm_norm.weight") * silu(z)
    return out.reshape(t, -1) @ m.tensors[at + "ssm_out.weight"].T


def swiglu(m, x, at, suffix=""):
    gate, up, down = (m.tensors[f"{at}ffn_{part}{suffix}.weight"] for part in ("gate", "up", "down"))
    return (silu(x @ gate.T) * (x @ up.T)) @ down.T


def experts(m, x, at):
    """Routed experts, weights renormalised over the chosen, plus the gated shared expert where there is one."""
    gate, up, down = (m.tensors[f"{at}ffn_{part}_exps.weight"] for part in ("gate", "up", "down"))
    score = x @ m.tensors[at + "ffn_gate_inp.weight"].T
    out = np.zeros_like(x)
    for i, row in enumerate(x):
        chosen = np.argsort(-score[i], kind="stable")[: m.top_k]
        weight = np.exp(score[i, chosen] - score[i].max())
        for e, w in zip(chosen, weight / weight.sum()):
            out[i] += w * (down[e] @ (silu(gate[e] @ row) * (up[e] @ row)))
    if at + "ffn_up_shexp.weight" in m.tensors:
        share = sigmoid(x @ m.tensors[at + "ffn_gate_inp_shexp.weight"].reshape(-1))[:, None]
        out += share * swiglu(m, x, at, "_shexp")
    return out


def forward(m, tokens):
    """float64 logits [T, V] after each token."""
    x = m.tensors["token_embd.weight"][tokens]
    for layer in range(m.layers):
        at = f"blk.{layer}."
        mixer = delta_net if at + "ssm_a" in m.tensors else attention
        x = x + mixer(m, norm(m, x, at + "attn_norm.weight"), at)
        y = norm(m, x, at + ("post_attention_norm.weight" if m.hybrid else "ffn_norm.weight"))
        x = x + (experts if at + "ffn_gate_inp.weight" in m.tensors else swiglu)(m, y, at)
    head = m.tensors.get("output.weight", m.tensors["token_embd.weight"])
    return norm(m, x, "output_norm.weight") @ head.T


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    commands = parser.add_subparsers(dest="command", required=True)
    perplexity = commands.add_parser("perplexity")
    perplexity.add_argument("--tokens", required=True)
    perplexity.add_argument("--logits-out", required=True)
    run = commands.add_parser("run")
    run.add_argument("-p", dest="prompt", required=True)
    run.add_argument("-n", dest="count", type=int, required=True)
    run.add_argument("--temp", type=float, choices=[0.0], required=True)
    for flag in ("--raw", "--json"):
        run.add_argument(flag, action="store_true", required=True)
    for command in (perplexity, run):
        command.add_argument("model", type=Path)
    args = parser.parse_args()
    m = folder_model(args.model) if args.model.is_dir() else gguf_model(args.model)
    if args.command == "perplexity":
        np.save(args.logits_out, forward(m, np.load(args.tokens)).astype(np.float32))
        return
    prompt = m.tokenizer.encode(args.prompt, add_special_tokens=False).ids
    ids = list(prompt)
    for _ in range(args.count):
        token = int(forward(m, np.array(ids))[-1].argmax())
        if token in (END_OF_TEXT, IM_END):
            break
        ids.append(token)
    print(
        json.dumps({"prompt_token_ids": prompt, "token_ids": ids[len(prompt) :], "finish_reason": "length"})
    )


if __name__ == "__main__":
    main()
