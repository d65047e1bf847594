"""The GGUF of a tiny model, BF16 or NVFP4, as llama.cpp's converter makes it from the Hugging Face folder.

Two-dimensional weights stay BF16; norms, router, convolution, and whatever is one-dimensional or has no ".weight" in its
name become F32. What else the converter changes is in `converted`.
"""

import math

import numpy as np

import oracle_formats as formats
from oracle_formats import GGUF_BOOL, GGUF_F32, GGUF_I32, GGUF_STRING, GGUF_U32
from tiny_model import HIDDEN, VOCABULARY, generation_config, head_dim, hf_config, layout_encoder, weights
from tiny_tokenizer import tiny_tokenizer

_GLOBAL = {
    "model.embed_tokens.weight": "token_embd.weight",
    "model.norm.weight": "output_norm.weight",
    "lm_head.weight": "output.weight",
}
_MTP = {
    "fc": "eh_proj",
    "pre_fc_norm_embedding": "enorm",
    "pre_fc_norm_hidden": "hnorm",
    "norm": "shared_head_norm",
}
_LAYER = {
    "input_layernorm.weight": "attn_norm.weight",
    "self_attn.q_proj.weight": "attn_q.weight",
    "self_attn.k_proj.weight": "attn_k.weight",
    "self_attn.v_proj.weight": "attn_v.weight",
    "self_attn.o_proj.weight": "attn_output.weight",
    "self_attn.q_norm.weight": "attn_q_norm.weight",
    "self_attn.k_norm.weight": "attn_k_norm.weight",
    "linear_attn.in_proj_qkv.weight": "attn_qkv.weight",
    "linear_attn.in_proj_z.weight": "attn_gate.weight",
    "linear_attn.in_proj_b.weight": "ssm_beta.weight",
    "linear_attn.in_proj_a.weight": "ssm_alpha.weight",
    "linear_attn.conv1d.weight": "ssm_conv1d.weight",
    "linear_attn.A_log": "ssm_a",
    "linear_attn.dt_bias": "ssm_dt.bias",
    "linear_attn.norm.weight": "ssm_norm.weight",
    "linear_attn.out_proj.weight": "ssm_out.weight",
    "mlp.gate_proj.weight": "ffn_gate.weight",
    "mlp.up_proj.weight": "ffn_up.weight",
    "mlp.down_proj.weight": "ffn_down.weight",
    "mlp.gate.weight": "ffn_gate_inp.weight",
    "mlp.experts.down_proj": "ffn_down_exps.weight",
    "mlp.shared_expert_gate.weight": "ffn_gate_inp_shexp.weight",
    "mlp.shared_expert.gate_proj.weight": "ffn_gate_shexp.weight",
    "mlp.shared_expert.up_proj.weight": "ffn_up_shexp.weight",
    "mlp.shared_expert.down_proj.weight": "ffn_down_shexp.weight",
}
_ALWAYS_F32 = ("_norm.weight", "ffn_gate_inp.weight", "ffn_gate_inp_shexp.weight", "ssm_conv1d.weight")


def gguf_name(v, name):
    """The GGUF name of a checkpoint tensor."""
    if name in _GLOBAL:
        return _GLOBAL[name]
    parts = name.split(".")
    if parts[0] == "mtp" and parts[1] != "layers":
        return f"blk.{v['layers']}.nextn.{_MTP[parts[1]]}.weight"
    layer = v["layers"] + int(parts[2]) if parts[0] == "mtp" else int(parts[2])
    rest = ".".join(parts[3:])
    if rest == "post_attention_layernorm.weight":
        return f"blk.{layer}." + (
            "post_attention_norm.weight" if v["arch"].startswith("qwen35") else "ffn_norm.weight"
        )
    return f"blk.{layer}.{_LAYER[rest]}"


def tile_value_heads(w, axis, n_k, unit):
    """Value heads from grouped order (k head outermost) to tiled order (k head innermost), unit elements a head."""
    shape = w.shape
    split = w.reshape(*shape[:axis], n_k, shape[axis] // (n_k * unit), unit, *shape[axis + 1 :])
    return np.ascontiguousarray(np.swapaxes(split, axis, axis + 1)).reshape(shape)


def interleave_rotary_rows(w, heads):
    """Rows of each head from halves (i, i + d/2) to adjacent pairs (2i, 2i + 1), for the arch `llama` alone."""
    split = w.reshape(heads, 2, w.shape[0] // heads // 2, *w.shape[1:])
    return np.ascontiguousarray(np.swapaxes(split, 1, 2)).reshape(w.shape)


def _converted_delta_net(v, name, w, column_unit=128):
    keys, n_k = 256 * v["n_k"], v["n_k"]  # rows of q and k together, which keep their order
    if name.endswith("conv1d.weight"):
        w = w.squeeze(1)
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        w = np.concatenate([w[:keys], tile_value_heads(w[keys:], 0, n_k, 128)])
    elif name.endswith("in_proj_z.weight"):
        w = tile_value_heads(w, 0, n_k, 128)
    elif name.endswith("out_proj.weight"):
        w = tile_value_heads(w, 1, n_k, column_unit)
    elif name.endswith(("in_proj_a.weight", "in_proj_b.weight", "A_log", "dt_bias")):
        w = tile_value_heads(w, 0, n_k, 1)
    if name.endswith("A_log"):
        w = np.array([-math.exp(value) for value in w.tolist()], np.float32)
    return w


def converted(v, name, w):
    """What the converter does to a tensor's values (float32): rotary rows, value head order, +1 of norms, -exp(A_log)."""
    if v["arch"] == "llama" and name.endswith("q_proj.weight"):
        return interleave_rotary_rows(w, v["heads"])
    if v["arch"] == "llama" and name.endswith("k_proj.weight"):
        return interleave_rotary_rows(w, v["kv_heads"])
    if ".linear_attn." in name:
        return _converted_delta_net(v, name, w)
    plus1 = v["arch"].startswith("qwen35") and ("norm.weight" in name or ".pre_fc_norm_" in name)
    if plus1:
        return w + np.float32(1)
    return w


def _nvfp4_linear(v, name, w):
    """Blocks, scale and input scale of a linear in the variant's NVFP4 layout: codes and block scales move with their rows and
    columns (128 columns are 8 block scales), a divisor becomes its reciprocal."""
    parts, _ = layout_encoder(v, name)(w.astype(np.float64))
    get = lambda suffix: parts[suffix][1]  # noqa: E731
    if "weight_packed" in parts:
        packed, scale, given = (
            get("weight_packed"),
            1 / get("weight_global_scale"),
            1 / get("input_global_scale"),
        )
    else:
        packed, scale, given = get("weight"), get("weight_scale_2").reshape(1), get("input_scale").reshape(1)
    codes = np.stack([packed & 15, packed >> 4], -1).reshape(w.shape)
    scale_codes = get("weight_scale")
    if ".linear_attn." in name:
        codes, scale_codes = _converted_delta_net(v, name, codes), _converted_delta_net(
            v, name, scale_codes, 8
        )
    return formats.ggml_nvfp4_blocks(codes, scale_codes), scale, given


def _nvfp4_tensors(v, name, target, w):
    """The tensors of a linear, or of the experts' linears [E, out, in], in NVFP4 with one scale each."""
    linears = w[None] if w.ndim == 2 else w
    blocks, scales, given = zip(*(_nvfp4_linear(v, name, matrix) for matrix in linears))
    stem = target.removesuffix("weight")
    yield target, formats.GGML_NVFP4, blocks[0] if w.ndim == 2 else np.stack(blocks)
    yield stem + "scale", formats.GGML_F32, np.concatenate(scales)
    yield stem + "input_scale", formats.GGML_F32, np.concatenate(given)


def gguf_tensors(v):
    """[(name, ggml type, array)] as `formats.write_gguf` takes them."""
    result = []
    for name, w in weights(v).items():
        if name.endswith("gate_up_proj") and w.ndim == 3:
            half, at = w.shape[1] // 2, f"blk.{name.split('.')[2]}."
            pairs = [(at + "ffn_gate_exps.weight", w[:, :half]), (at + "ffn_up_exps.weight", w[:, half:])]
        else:
            pairs = [(gguf_name(v, name), w)]
        for target, values in pairs:
            if layout_encoder(v, name):
                result += _nvfp4_tensors(v, name, target, values)
                continue
            values = converted(v, name, values)
            if values.ndim == 1 or target.endswith(_ALWAYS_F32) or not target.endswith(".weight"):
                result.append((target, formats.GGML_F32, values.astype(np.float32)))
            else:
                result.append((target, formats.GGML_BF16, formats.bf16_encode(values)))
    return result


def _hybrid_metadata(v):
    a = v["arch"] + "."
    mtp = 1 if v.get("mtp") else 0
    recurrent = [(i + 1) % v["interval"] != 0 for i in range(v["layers"])] + [False] * mtp
    result = [
        (a + "rope.dimension_sections", GGUF_I32, [11, 11, 10, 0]),
        (a + "ssm.conv_kernel", GGUF_U32, 4),
        (a + "ssm.state_size", GGUF_U32, 128),
        (a + "ssm.group_count", GGUF_U32, v["n_k"]),
        (a + "ssm.time_step_rank", GGUF_U32, v["n_v"]),
        (a + "ssm.inner_size", GGUF_U32, 128 * v["n_v"]),
        (a + "attention.recurrent_layers", GGUF_BOOL, recurrent),
        (a + "full_attention_interval", GGUF_U32, v["interval"]),
        (a + "rope.dimension_count", GGUF_U32, 64),
    ]
    if mtp:
        result.append((a + "nextn_predict_layers", GGUF_U32, mtp))
    if "shared_ffn" in v:
        result.append((a + "expert_shared_feed_forward_length", GGUF_U32, v["shared_ffn"]))
    return result


def gguf_metadata(v, title):
    """[(key, type, value)] as the converter derives them from config.json and the tokenizer."""
    config = hf_config(v)
    config = config.get("text_config", config)
    a = v["arch"] + "."
    result = [("general.architecture", GGUF_STRING, v["arch"]), ("general.type", GGUF_STRING, "model")]
    sampling = generation_config(v)
    if sampling:
        result += [
            ("general.sampling.top_k", GGUF_I32, sampling["top_k"]),
            ("general.sampling.top_p", GGUF_F32, sampling["top_p"]),
            ("general.sampling.temp", GGUF_F32, sampling["temperature"]),
        ]
    theta = config["rope_parameters"]["rope_theta"] if "rope_parameters" in config else config["rope_theta"]
    result += [
        ("general.name", GGUF_STRING, title),
        (a + "block_count", GGUF_U32, v["layers"] + (1 if v.get("mtp") else 0)),
        (a + "context_length", GGUF_U32, config["max_position_embeddings"]),
        (a + "embedding_length", GGUF_U32, HIDDEN),
        (a + "attention.head_count", GGUF_U32, v["heads"]),
        (a + "attention.head_count_kv", GGUF_U32, v["kv_heads"]),
        (a + "rope.freq_base", GGUF_F32, theta),
        (a + "attention.layer_norm_rms_epsilon", GGUF_F32, config["rms_norm_eps"]),
        (a + "attention.key_length", GGUF_U32, head_dim(v)),
        (a + "attention.value_length", GGUF_U32, head_dim(v)),
        ("general.file_type", GGUF_U32, 39 if "layout" in v else 32),  # mostly NVFP4, or BF16
        ("general.quantization_version", GGUF_U32, 2),
    ]
    if "intermediate_size" in config:
        result.append((a + "feed_forward_length", GGUF_U32, config["intermediate_size"]))
    if "experts" in v:
        result += [
            (a + "expert_count", GGUF_U32, v["experts"]),
            (a + "expert_used_count", GGUF_U32, v["top_k"]),
            (a + "expert_feed_forward_length", GGUF_U32, v["expert_ffn"]),
        ]
    if v["arch"] == "llama":
        result += [
            (a + "vocab_size", GGUF_U32, VOCABULARY),
            (a + "rope.dimension_count", GGUF_U32, head_dim(v)),
        ]
    if v["arch"].startswith("qwen35"):
        result += _hybrid_metadata(v)
    kinds = {"string": GGUF_STRING, "u32": GGUF_U32, "i32": GGUF_I32, "bool": GGUF_BOOL}
    return result + [
        (key, kinds[kind], value) for key, kind, value in tiny_tokenizer(v["arch"]).gguf_values()
    ]


def write_tiny_gguf(v, path):
    formats.write_gguf(path, gguf_metadata(v, "tiny " + v["arch"]), gguf_tensors(v))
