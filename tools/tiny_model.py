"""Variants, weights and Hugging Face folders of the tiny random models (command line: make_tiny_model.py).

A weight is a hash of (tensor name, element index). With h = FNV-1a-64(name) and all arithmetic modulo 2^64:
    x = h + (i + 1) * 0x9E3779B97F4A7C15, then SplitMix64's finaliser
    n = sum of the four 16-bit fields of x, minus 131070            (mean 0, variance (2^32 - 1) / 3, near normal)
    weight = BF16(float32(mean + n * std / sqrt((2^32 - 1) / 3)))
where mean and std follow from the tensor's role (`role`). Names are those of the checkpoint with the text model at
"model." and experts fused; sharding, other prefixes and separate experts only change where the values are stored.
"""

import json
import math
from pathlib import Path

import numpy as np

import oracle_formats as formats
from tiny_tokenizer import tiny_tokenizer

VOCABULARY = 512
HIDDEN = 256
END_OF_TEXT, IM_START, IM_END = VOCABULARY - 3, VOCABULARY - 2, VOCABULARY - 1

# ---- Variants -------------------------------------------------------------------------------------------------------

_QWEN35 = {
    "arch": "qwen35",
    "layers": 4,
    "interval": 4,
    "heads": 4,
    "kv_heads": 2,
    "n_k": 2,
    "ffn": 256,
    "prefix": "model.language_model.",
}
_MOE = {
    "arch": "qwen35moe",
    "layers": 2,
    "interval": 2,
    "heads": 2,
    "kv_heads": 1,
    "n_k": 2,
    "n_v": 4,
    "experts": 8,
    "top_k": 3,
    "expert_ffn": 128,
    "shared_ffn": 256,
    "prefix": "model.language_model.",
}
_R3 = {**_QWEN35, "n_v": 6, "ffn": 320}

VARIANTS = {
    "llama": {"arch": "llama", "layers": 3, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 512},
    "qwen3": {"arch": "qwen3", "layers": 2, "heads": 4, "kv_heads": 2, "head_dim": 128, "ffn": 512},
    "qwen3-tied": {
        "arch": "qwen3",
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 128,
        "ffn": 512,
        "tied": True,
    },
    "qwen3moe": {
        "arch": "qwen3moe",
        "layers": 2,
        "heads": 4,
        "kv_heads": 2,
        "head_dim": 128,
        "experts": 12,
        "top_k": 4,
        "expert_ffn": 128,
        "unfused": True,
    },
    "qwen35-r1": {**_QWEN35, "heads": 2, "kv_heads": 1, "n_v": 2, "tied": True, "prefix": "model."},
    "qwen35-r2": {**_QWEN35, "n_v": 4},
    "qwen35-r2-mtp": {**_QWEN35, "n_v": 4, "mtp": True},
    "qwen35-r3": _R3,
    "qwen35-r3-fp8-channel": {**_R3, "layout": "fp8-channel"},
    "qwen35-r3-fp8-tensor": {**_R3, "layout": "fp8-tensor"},
    "qwen35-r3-fp8-block": {**_R3, "layout": "fp8-block"},
    "qwen35-r3-nvfp4-ct": {**_R3, "layout": "nvfp4-ct"},
    "qwen35-r3-nvfp4-modelopt": {**_R3, "layout": "nvfp4-modelopt"},
    "qwen35-r3-mixed-ct": {**_R3, "layout": "mixed-ct"},
    "qwen35moe": _MOE,
    "qwen35moe-unfused": {**_MOE, "unfused": True},
    "qwen35moe-nvfp4-ct": {**_MOE, "unfused": True, "layout": "nvfp4-ct"},
}

# ---- Weights --------------------------------------------------------------------------------------------------------


def hash_normal(name, count):
    """count near-normal numbers of mean 0 and deviation 1 for a tensor name (see the top of the file)."""
    seed = 0xCBF29CE484222325
    for byte in name.encode():
        seed = ((seed ^ byte) * 0x100000001B3) % 2**64
    with np.errstate(over="ignore"):
        x = np.uint64(seed) + np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x = x ^ (x >> np.uint64(31))
    fields = sum(((x >> np.uint64(shift)) & np.uint64(0xFFFF)).astype(np.int64) for shift in (0, 16, 32, 48))
    return (fields - 131070) * (1.0 / math.sqrt((2**32 - 1) / 3))


def role(v, name, shape):
    """(mean, std) of a tensor: unit-variance activations, attention that looks at few tokens, decay of 1 to 1000 tokens."""
    plus1 = v["arch"].startswith("qwen35")
    fan_in = 1.0 / math.sqrt(shape[-1])
    if name.endswith("linear_attn.norm.weight"):
        return 1.0, 0.2
    if name.endswith(("q_norm.weight", "k_norm.weight")):
        return (0.3 if plus1 else 1.3), 0.2
    if name.endswith("norm.weight") or "layernorm" in name or ".pre_fc_norm" in name:
        return (0.0 if plus1 else 1.0), 0.2
    if name == "model.embed_tokens.weight":
        return 0.0, 2.0 * fan_in if v.get("tied") else 0.01  # so small that a wrong eps shows
    special = {
        "A_log": (0.3, 1.0),
        "dt_bias": (-2.0, 1.5),
        "conv1d.weight": (0.0, 0.5),
        "lm_head.weight": (0.0, 2.5 * fan_in),
        "mlp.gate.weight": (0.0, 2.0 * fan_in),
        "q_proj.weight": (0.0, 1.5 * fan_in),
    }
    for suffix, mean_std in special.items():
        if name.endswith(suffix):
            return mean_std
    return 0.0, fan_in


def _attention_shapes(v, at):
    gates = 2 if v["arch"].startswith("qwen35") else 1
    d, heads, kv = head_dim(v), v["heads"], v["kv_heads"]
    yield at + "self_attn.q_proj.weight", (gates * heads * d, HIDDEN)
    yield at + "self_attn.k_proj.weight", (kv * d, HIDDEN)
    yield at + "self_attn.v_proj.weight", (kv * d, HIDDEN)
    yield at + "self_attn.o_proj.weight", (HIDDEN, heads * d)
    if v["arch"] != "llama":
        yield at + "self_attn.q_norm.weight", (d,)
        yield at + "self_attn.k_norm.weight", (d,)


def _delta_net_shapes(v, at):
    keys, values = 128 * v["n_k"], 128 * v["n_v"]
    yield at + "linear_attn.in_proj_qkv.weight", (2 * keys + values, HIDDEN)
    yield at + "linear_attn.in_proj_z.weight", (values, HIDDEN)
    yield at + "linear_attn.in_proj_b.weight", (v["n_v"], HIDDEN)
    yield at + "linear_attn.in_proj_a.weight", (v["n_v"], HIDDEN)
    yield at + "linear_attn.conv1d.weight", (2 * keys + values, 1, 4)
    yield at + "linear_attn.A_log", (v["n_v"],)
    yield at + "linear_attn.dt_bias", (v["n_v"],)
    yield at + "linear_attn.norm.weight", (128,)
    yield at + "linear_attn.out_proj.weight", (HIDDEN, values)


def _ffn_shapes(v, at):
    if "experts" in v:
        yield at + "mlp.gate.weight", (v["experts"], HIDDEN)
        yield at + "mlp.experts.gate_up_proj", (v["experts"], 2 * v["expert_ffn"], HIDDEN)
        yield at + "mlp.experts.down_proj", (v["experts"], HIDDEN, v["expert_ffn"])
    if "shared_ffn" in v:
        yield at + "mlp.shared_expert_gate.weight", (1, HIDDEN)
    for at_mlp, width in ((at + "mlp.", v.get("ffn")), (at + "mlp.shared_expert.", v.get("shared_ffn"))):
        if width:
            yield at_mlp + "gate_proj.weight", (width, HIDDEN)
            yield at_mlp + "up_proj.weight", (width, HIDDEN)
            yield at_mlp + "down_proj.weight", (HIDDEN, width)


def _layer_shapes(v, at, full_attention):
    yield at + "input_layernorm.weight", (HIDDEN,)
    yield from _attention_shapes(v, at) if full_attention else _delta_net_shapes(v, at)
    yield at + "post_attention_layernorm.weight", (HIDDEN,)
    yield from _ffn_shapes(v, at)


def tensor_shapes(v):
    """(name, shape) of every tensor of a variant, in checkpoint order, experts fused."""
    yield "model.embed_tokens.weight", (VOCABULARY, HIDDEN)
    for layer in range(v["layers"]):
        yield from _layer_shapes(v, f"model.layers.{layer}.", (layer + 1) % v.get("interval", 1) == 0)
    yield "model.norm.weight", (HIDDEN,)
    if not v.get("tied"):
        yield "lm_head.weight", (VOCABULARY, HIDDEN)
    if v.get("mtp"):
        yield "mtp.fc.weight", (HIDDEN, 2 * HIDDEN)
        yield "mtp.pre_fc_norm_embedding.weight", (HIDDEN,)
        yield "mtp.pre_fc_norm_hidden.weight", (HIDDEN,)
        yield from _layer_shapes(v, "mtp.layers.0.", True)
        yield "mtp.norm.weight", (HIDDEN,)


def weights(v):
    """{name: float32 array of BF16 values}."""
    result = {}
    for name, shape in tensor_shapes(v):
        mean, std = role(v, name, shape)
        result[name] = formats.bf16_round(mean + std * hash_normal(name, math.prod(shape))).reshape(shape)
    return result


def has_gguf(v):
    """FP8 layouts are of safetensors alone; NVFP4 has a GGUF form when it is the only layout of the file."""
    return v.get("layout", "nvfp4-ct") in ("nvfp4-ct", "nvfp4-modelopt")


def head_dim(v):
    return v.get("head_dim", 256)


# ---- Hugging Face folder --------------------------------------------------------------------------------------------


def unfuse_experts(tensors):
    """Fused expert tensors -> one tensor an expert and projection, as older and quantised checkpoints store them."""
    result = {}
    for name, array in tensors.items():
        at, _, kind = name.partition("experts.")
        if kind not in ("gate_up_proj", "down_proj"):
            result[name] = array
            continue
        for expert, w in enumerate(array):
            if kind == "down_proj":
                result[f"{at}experts.{expert}.down_proj.weight"] = w
            else:
                half = w.shape[0] // 2
                result[f"{at}experts.{expert}.gate_proj.weight"] = w[:half]
                result[f"{at}experts.{expert}.up_proj.weight"] = w[half:]
    return result


def layout_encoder(v, name):
    """The encoder of a linear in the variant's quantised layout, or None where the recipe leaves it alone."""
    linear = (
        "_proj" in name
        and not name.endswith(("in_proj_a.weight", "in_proj_b.weight"))
        and not name.startswith("mtp.")
    )
    layout = v.get("layout")
    if layout == "mixed-ct":  # attention, head and the last MLP in FP8 per channel, the other MLPs in NVFP4
        nvfp4 = ".mlp." in name and f"layers.{v['layers'] - 1}." not in name
        if linear or name == "lm_head.weight":
            return formats.encode_nvfp4_ct if linear and nvfp4 else formats.encode_fp8_channel
        return None
    return getattr(formats, "encode_" + layout.replace("-", "_")) if layout and linear else None


def stored_tensors(v):
    """{checkpoint name: (safetensors dtype, array)} as the folder holds them."""
    plain = weights(v)
    if v.get("unfused"):
        plain = unfuse_experts(plain)
    result = {}
    for name, w in plain.items():
        stored = v["prefix"] + name[len("model.") :] if "prefix" in v and name.startswith("model.") else name
        encoder = layout_encoder(v, name)
        if encoder:
            parts, _ = encoder(w.astype(np.float64))
            result |= {stored.removesuffix("weight") + suffix: part for suffix, part in parts.items()}
        elif name.endswith(("A_log", "linear_attn.norm.weight")):
            result[stored] = ("F32", w)
        else:
            result[stored] = ("BF16", formats.bf16_encode(w))
    return result


def _base_config(v):
    config = {
        "hidden_size": HIDDEN,
        "num_hidden_layers": v["layers"],
        "num_attention_heads": v["heads"],
        "num_key_value_heads": v["kv_heads"],
        "vocab_size": VOCABULARY,
        "max_position_embeddings": 1024,
        "hidden_act": "silu",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "rms_norm_eps": 1e-5 if v["arch"] == "llama" else 1e-6,
        "tie_word_embeddings": v.get("tied", False),
        "use_cache": True,
        "initializer_range": 0.02,
        "eos_token_id": IM_END,
        "torch_dtype": "bfloat16",
    }
    if "experts" in v:
        config |= {
            "num_experts": v["experts"],
            "num_experts_per_tok": v["top_k"],
            "moe_intermediate_size": v["expert_ffn"],
        }
    if "ffn" in v:
        config["intermediate_size"] = v["ffn"]
    return config


def _plain_config(v):
    config = _base_config(v)
    if v["arch"] == "llama":
        return {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            **config,
            "bos_token_id": IM_START,
            "mlp_bias": False,
            "rope_theta": 100000.0,
            "rope_scaling": None,
        }
    config |= {
        "head_dim": v["head_dim"],
        "rope_theta": 1000000.0,
        "rope_scaling": None,
        "sliding_window": None,
        "use_sliding_window": False,
    }
    if v["arch"] == "qwen3":
        return {"architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", **config}
    return {
        "architectures": ["Qwen3MoeForCausalLM"],
        "model_type": "qwen3_moe",
        **config,
        "intermediate_size": 768,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "output_router_logits": False,
        "router_aux_loss_coef": 0.001,
    }


def _hybrid_config(v):
    kinds = [
        "full_attention" if (i + 1) % v["interval"] == 0 else "linear_attention" for i in range(v["layers"])
    ]
    family = "qwen3_5_moe" if v["arch"] == "qwen35moe" else "qwen3_5"
    text = {
        "model_type": family + "_text",
        **_base_config(v),
        "head_dim": 256,
        "attn_output_gate": True,
        "full_attention_interval": v["interval"],
        "layer_types": kinds,
        "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_num_key_heads": v["n_k"],
        "linear_num_value_heads": v["n_v"],
        "mamba_ssm_dtype": "float32",
        "mtp_num_hidden_layers": 1 if v.get("mtp") else 0,
        "mtp_use_dedicated_embeddings": False,
        "rope_parameters": {
            "mrope_interleaved": True,
            "mrope_section": [11, 11, 10],
            "partial_rotary_factor": 0.25,
            "rope_theta": 10000000.0,
            "rope_type": "default",
        },
    }
    if "shared_ffn" in v:
        text["shared_expert_intermediate_size"] = v["shared_ffn"]
    title = "Qwen3_5Moe" if v["arch"] == "qwen35moe" else "Qwen3_5"
    if v["prefix"] == "model.":  # a text-only export
        return {"architectures": [title + "ForCausalLM"], **text}
    return {
        "architectures": [title + "ForConditionalGeneration"],
        "model_type": family,
        "text_config": text,
        "tie_word_embeddings": False,
        "image_token_id": 0,
        "video_token_id": 1,
        "vision_start_token_id": 2,
        "vision_end_token_id": 3,
    }


def quantization_config(v):
    """The `quantization_config` entry of config.json for the variant's layout; the engine is to trust names and dtypes."""
    fp8 = {
        "format": "float-quantized",
        "input_activations": {"dynamic": True, "num_bits": 8, "strategy": "token", "type": "float"},
        "targets": ["Linear"],
        "weights": {
            "dynamic": False,
            "num_bits": 8,
            "strategy": "channel",
            "symmetric": True,
            "type": "float",
        },
    }
    nvfp4 = {
        "format": "nvfp4-pack-quantized",
        "targets": ["Linear"],
        "input_activations": {
            "dynamic": "local",
            "group_size": 16,
            "num_bits": 4,
            "strategy": "tensor_group",
            "type": "float",
        },
        "weights": {
            "dynamic": False,
            "group_size": 16,
            "num_bits": 4,
            "strategy": "tensor_group",
            "symmetric": True,
            "type": "float",
        },
    }
    base = {
        "quant_method": "compressed-tensors",
        "quantization_status": "compressed",
        "ignore": ["re:.*in_proj_[ab]", "lm_head", "re:^mtp.*"],
    }
    return {
        "fp8-channel": {**base, "format": "float-quantized", "config_groups": {"group_0": fp8}},
        "nvfp4-ct": {**base, "format": "nvfp4-pack-quantized", "config_groups": {"group_0": nvfp4}},
        "mixed-ct": {
            **base,
            "format": "mixed-precision",
            "config_groups": {"group_0": fp8, "group_1": nvfp4},
        },
        "fp8-block": {
            "quant_method": "fp8",
            "fmt": "e4m3",
            "activation_scheme": "dynamic",
            "weight_block_size": [128, 128],
        },
        "fp8-tensor": {"quant_method": "modelopt", "quant_algo": "FP8", "exclude_modules": ["lm_head"]},
        "nvfp4-modelopt": {
            "quant_method": "modelopt",
            "quant_algo": "NVFP4",
            "group_size": 16,
            "exclude_modules": ["lm_head"],
        },
    }[v["layout"]]


def hf_config(v):
    config = _hybrid_config(v) if v["arch"].startswith("qwen35") else _plain_config(v)
    return {**config, "quantization_config": quantization_config(v)} if "layout" in v else config


def generation_config(v):
    if not v["arch"].startswith("qwen35"):
        return None
    return {
        "do_sample": True,
        "eos_token_id": [IM_END, END_OF_TEXT],
        "temperature": 1.0,
        "top_k": 20,
        "top_p": 0.95,
    }


def write_hf(v, folder, shards=1):
    """Writes config.json, generation_config.json, the tokenizer and 1 or more safetensors files into a folder."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    texts = {
        "config.json": hf_config(v),
        "generation_config.json": generation_config(v),
        **tiny_tokenizer(v["arch"]).hf_files(),
    }
    for name, content in texts.items():
        if content is not None:
            (folder / name).write_text(
                json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
            )
    tensors = stored_tensors(v)
    if shards == 1:
        formats.write_safetensors(folder / "model.safetensors", tensors)
        return
    names, weight_map = list(tensors), {}
    for shard in range(shards):
        part = names[shard * len(names) // shards : (shard + 1) * len(names) // shards]
        file = f"model-{shard + 1:05d}-of-{shards:05d}.safetensors"
        formats.write_safetensors(folder / file, {name: tensors[name] for name in part})
        weight_map |= dict.fromkeys(part, file)
    index = {"metadata": {"total_size": sum(a.nbytes for _, a in tensors.values())}, "weight_map": weight_map}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")
