"""Hugging Face transformers as a float64 oracle, and weights in its order from checkpoints and GGUF files.

transformers casts to float32 inside norms, rotary tables, softmax and the delta rule even when the model is float64. Here
those casts are turned into casts to float64 while the model's own code runs, so that the result is good to about 1e-12.
"""

import contextlib
import json
from pathlib import Path

import gguf
import numpy as np
import torch
import transformers
from safetensors import safe_open

from tiny_gguf import gguf_name
from tiny_model import tensor_shapes

_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], dtype=torch.float64)
_CLASSES = {
    "llama": "Llama",
    "qwen3": "Qwen3",
    "qwen3_moe": "Qwen3Moe",
    "qwen3_5_text": "Qwen3_5",
    "qwen3_5_moe_text": "Qwen3_5Moe",
}


# ---- Running --------------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def float32_means_float64():
    """While active, asking torch for float32 gives float64."""
    to, softmax, float_ = torch.Tensor.to, torch.nn.functional.softmax, torch.Tensor.float

    def wide(value):
        return torch.float64 if value is torch.float32 else value

    def wide_to(self, *args, **kwargs):
        return to(self, *map(wide, args), **{key: wide(value) for key, value in kwargs.items()})

    def wide_softmax(*args, **kwargs):
        return softmax(*args, **{key: wide(value) for key, value in kwargs.items()})

    torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax = (
        wide_to,
        lambda self: to(self, torch.float64),
        wide_softmax,
    )
    try:
        yield
    finally:
        torch.Tensor.to, torch.Tensor.float, torch.nn.functional.softmax = to, float_, softmax


def text_config(folder):
    """The transformers configuration of the text model in a folder."""
    config = json.loads((Path(folder) / "config.json").read_text())
    config.pop("quantization_config", None)
    config = config.get("text_config", config)
    kind = _CLASSES[config["model_type"]]
    name = kind + ("TextConfig" if "_text" in config["model_type"] else "Config")
    return getattr(transformers, name)(**config), getattr(transformers, kind + "ForCausalLM")


class Oracle:
    """A transformers model in float64 with given weights ({checkpoint name at "model.", experts fused: float64 tensor})."""

    def __init__(self, folder, weights):
        config, kind = text_config(folder)
        config._attn_implementation = "eager"
        config._experts_implementation = "eager"
        self.model = kind._from_config(
            config, dtype=torch.float64, attn_implementation="eager", experts_implementation="eager"
        ).eval()
        weights = {name: w for name, w in weights.items() if not name.startswith("mtp.")}
        missing, unexpected = self.model.load_state_dict(weights, strict=False)
        missing = [name for name in missing if not (name == "lm_head.weight" and config.tie_word_embeddings)]
        if missing or unexpected:
            raise SystemExit(f"weights do not fit: missing {missing}, unexpected {unexpected}")
        rope = config.rope_parameters
        rotary = int(self.model.model.rotary_emb.inv_freq.numel()) * 2
        exponent = torch.arange(0, rotary, 2, dtype=torch.float64) / rotary
        assert rope["rope_type"] == "default"
        exact = torch.tensor(rope["rope_theta"], dtype=torch.float64) ** -exponent
        assert torch.allclose(exact, self.model.model.rotary_emb.inv_freq.double(), rtol=1e-6)
        self.model.model.rotary_emb.inv_freq = exact

    def _run(self, tokens):
        with torch.no_grad(), float32_means_float64():
            ids = torch.as_tensor(np.asarray(tokens, np.int64))[None]
            return self.model(ids, use_cache=False, output_hidden_states=True)

    def logits(self, tokens):
        """float64 [tokens, vocabulary]"""
        result = self._run(tokens).logits[0]
        assert result.dtype == torch.float64
        return result.numpy()

    def logits_and_hidden(self, tokens):
        """Also float64 [layers + 1, tokens, hidden], as transformers defines them: the last one is after the final norm."""
        result = self._run(tokens)
        return result.logits[0].numpy(), torch.stack(result.hidden_states)[:, 0].numpy()

    def smallest_router_margin(self, tokens):
        """Smallest gap between the last expert taken and the first not taken, in router logits, over layers and tokens."""
        margins = []

        def look(module, _, output):
            ranked = output[0].sort(-1, descending=True).values
            margins.append(float((ranked[:, module.top_k - 1] - ranked[:, module.top_k]).min()))

        hooks = [
            m.register_forward_hook(look)
            for name, m in self.model.named_modules()
            if name.endswith("mlp.gate")
        ]
        self._run(tokens)
        for hook in hooks:
            hook.remove()
        return min(margins)


def kl_divergence(p_logits, q_logits):
    """KL(p || q) in nats a row, float64."""
    p = p_logits.astype(np.float64)
    q = q_logits.astype(np.float64)
    p = p - p.max(1, keepdims=True)
    q = q - q.max(1, keepdims=True)
    log_p = p - np.log(np.exp(p).sum(1, keepdims=True))
    log_q = q - np.log(np.exp(q).sum(1, keepdims=True))
    return (np.exp(log_p) * (log_p - log_q)).sum(1)


# ---- Weights of a checkpoint folder ---------------------------------------------------------------------------------


def _decode_nvfp4(packed, scale):
    """packed U8 [out, in/2] (low nibble first), scale F8_E4M3 [out, in/16] -> float64 [out, in] before the tensor scale"""
    codes = torch.stack([packed & 15, packed >> 4], -1).reshape(packed.shape[0], -1)
    return _E2M1[codes.long()] * scale.double().repeat_interleave(16, 1)


def _decode_linear(get, name):
    """The linear `name` (without ".weight") in float64, whichever layout it is stored in; None if it is none of them."""
    have = lambda suffix: get(f"{name}.{suffix}")  # noqa: E731
    if have("weight_packed") is not None:
        return (
            _decode_nvfp4(have("weight_packed"), have("weight_scale")) / have("weight_global_scale").double()
        )
    w = have("weight")
    if w is None:
        return None
    if have("weight_scale_2") is not None:
        return _decode_nvfp4(w, have("weight_scale")) * have("weight_scale_2").double()
    if have("weight_scale_inv") is not None:
        scale = have("weight_scale_inv").double().repeat_interleave(128, 0).repeat_interleave(128, 1)
        return w.double() * scale[: w.shape[0], : w.shape[1]]
    if have("weight_scale") is not None:
        return w.double() * have("weight_scale").double()
    return w.double()


def checkpoint_weights(folder, v):
    """{name: float64 tensor} of a folder, text model at "model.", experts fused, quantised layouts decoded."""
    stored = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        with safe_open(path, "pt") as file:
            stored |= {name: file.get_tensor(name) for name in file.keys()}
    stored = {name.replace("model.language_model.", "model."): w for name, w in stored.items()}
    result = {}
    for name, shape in tensor_shapes(v):
        at, _, kind = name.partition("experts.")
        linear = lambda stem: _decode_linear(stored.get, stem)  # noqa: E731
        if kind in ("gate_up_proj", "down_proj") and name not in stored:
            parts = ["gate_proj", "up_proj"] if kind == "gate_up_proj" else ["down_proj"]
            w = torch.stack(
                [
                    torch.cat([linear(f"{at}experts.{e}.{part}") for part in parts])
                    for e in range(v["experts"])
                ]
            )
        elif name.endswith(".weight"):
            w = linear(name.removesuffix(".weight"))
        else:
            w = stored[name].double()
        assert tuple(w.shape) == shape, (name, w.shape, shape)
        result[name] = w
    return result


# ---- Weights of a GGUF file -----------------------------------------------------------------------------------------


def _group_value_heads(w, axis, n_k, unit):
    """Undoes the converter's tiled order of value heads."""
    shape = w.shape
    split = w.reshape(*shape[:axis], shape[axis] // (n_k * unit), n_k, unit, *shape[axis + 1 :])
    return np.swapaxes(split, axis, axis + 1).reshape(shape)


def _checkpoint_order(v, name, w):
    """GGUF values of a tensor (float64) -> checkpoint values."""
    if v["arch"] == "llama" and name.endswith(("q_proj.weight", "k_proj.weight")):
        heads = v["heads"] if "q_proj" in name else v["kv_heads"]
        return np.swapaxes(w.reshape(heads, -1, 2, w.shape[1]), 1, 2).reshape(w.shape)
    hybrid = v["arch"].startswith("qwen35")
    if hybrid and ".linear_attn." not in name and ("norm.weight" in name or ".pre_fc_norm_" in name):
        return w - 1
    if ".linear_attn." not in name:
        return w
    if name.endswith("A_log"):
        w = np.log(-w)
    keys, n_k = 256 * v["n_k"], v["n_k"]
    if name.endswith(("in_proj_qkv.weight", "conv1d.weight")):
        w = np.concatenate([w[:keys], _group_value_heads(w[keys:], 0, n_k, 128)])
        return w[:, None, :] if "conv1d" in name else w
    if name.endswith("norm.weight"):
        return w
    if name.endswith("out_proj.weight"):
        return _group_value_heads(w, 1, n_k, 128)
    return _group_value_heads(w, 0, n_k, 128 if name.endswith("in_proj_z.weight") else 1)


def gguf_values(path):
    """{name: float64 array, outermost dimension first} of a GGUF file, dequantised by the gguf package. An NVFP4 weight has a
    separate scale, one a matrix."""
    result = {}
    for tensor in gguf.GGUFReader(path).tensors:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        result[tensor.name] = values.reshape(tensor.shape[::-1].tolist()).astype(np.float64)
    for name in [name for name in result if name.endswith(".scale")]:
        scale, weight = result.pop(name), name.removesuffix("scale") + "weight"
        result[weight] = result[weight] * scale.reshape(-1, *[1] * (result[weight].ndim - 1))
    return {name: values for name, values in result.items() if not name.endswith(".input_scale")}


def gguf_weights(path, v):
    """{name: float64 tensor} as `checkpoint_weights` gives them, from a GGUF file."""
    values, result = gguf_values(path), {}
    for name, shape in tensor_shapes(v):
        if name.endswith("gate_up_proj") and len(shape) == 3:
            at = f"blk.{name.split('.')[2]}."
            w = np.concatenate([values[at + "ffn_gate_exps.weight"], values[at + "ffn_up_exps.weight"]], 1)
        else:
            w = _checkpoint_order(v, name, values[gguf_name(v, name)])
        result[name] = torch.from_numpy(np.ascontiguousarray(w)).reshape(shape)
    return result
