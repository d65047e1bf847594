"""Chat templates of real models against Jinja2 set up as transformers sets it up: byte for byte, on a grid of chats.

Risk: a prompt that differs by one blank from what the model was trained on; message text that opens a turn.
"""

import json
import os

import chats
import pytest
from fetch import byte_alphabet
from nasty_strings import Random

CONTROL = ["<|im_start|>", "<|im_end|>", "<|endoftext|>", "]~!b[", "]~b]", "[e~[", "<|eot_id|>", "<s>", "</s>"]
SHOWN = ["<think>", "</think>", "<tool_call>", "</tool_call>", "]<]minimax[>["]
SPECIALS = {"bos_token": "<s>", "eos_token": "<|im_end|>"}
REQUIRED = ["Qwen3.5-4B", "Qwen3-Coder", "MiniMax-M3"]
# Templates that cannot be compared, with the reason.
EXCLUDED = {
    "meetkai-functionary-medium-v3.1": "joins strings marked |safe, which Jinja2 then escapes as HTML",
}
# Where a chat is refused rather than rendered: an argument's name looks like a control token and the template sorts
# arguments by name, so marking the name moves it.
SORTING = ["google-gemma-4-31B-it", "google-gemma-4-31B-it-interleaved", "openbmb-MiniCPM5-1B"]
GRID = list(chats.grid())


def write_model(folder, source):
    """A folder with the template and a byte vocabulary with control tokens."""
    bytes_ = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": True}
    added = [(256 + i, t, True) for i, t in enumerate(CONTROL)] + [(300 + i, t, False) for i, t in enumerate(SHOWN)]
    tokenizer = {
        "version": "1.0",
        "model": {"type": "BPE", "vocab": {c: b for b, c in byte_alphabet().items()}, "merges": []},
        "normalizer": None,
        "pre_tokenizer": bytes_,
        "post_processor": None,
        "decoder": bytes_,
        "added_tokens": [{"id": i, "content": t, "special": s, "normalized": False} for i, t, s in added],
    }
    folder.mkdir(exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer))
    (folder / "tokenizer_config.json").write_text(json.dumps(SPECIALS))
    (folder / "chat_template.jinja").write_text(source, encoding="utf-8")
    return folder


def compare(name, source, probe, folder):
    """All chats of the grid; returns how many Jinja2 rendered."""
    template = chats.environment().from_string(source)
    answers = probe(write_model(folder, source)).ask([request for _, request in GRID])
    rendered = 0
    for (label, request), answer in zip(GRID, answers):
        expected = chats.render_with_jinja2(template, request, SPECIALS)
        if expected is None:
            if name in REQUIRED:
                assert "error" in answer, f"{name}: {label}: Jinja2 refuses this chat"
            continue
        if name in SORTING and label.startswith("injection calls"):
            assert "the messages hold text like a control token" in answer.get("error", ""), label
            continue
        assert answer.get("text") == expected, f"{name}: {label}: {answer.get('error')}"
        check_ids(answer, label)
        rendered += 1
    return rendered


def check_ids(answer, label):
    """The ids spell the text; those of control tokens are all that could matter beyond that."""
    texts = {256 + i: t for i, t in enumerate(CONTROL)} | {300 + i: t for i, t in enumerate(SHOWN)}
    spelled = b"".join(bytes([i]) if i < 256 else texts[i].encode() for i in answer["ids"])
    assert spelled.decode() == answer["text"], label


@pytest.mark.parametrize("name", REQUIRED)
def test_required(name, cache, probe, tmp_path):
    source = (cache / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    assert compare(name, source, probe, tmp_path / "model") > 250


def test_smollm2(smollm2, probe):
    """The default model's own template, with its real vocabulary."""
    import gguf

    source = gguf.GGUFReader(smollm2).fields["tokenizer.chat_template"].contents()
    template = chats.environment().from_string(source)
    answers = probe(smollm2).ask([request for _, request in GRID])
    specials = {"bos_token": "<|im_start|>", "eos_token": "<|im_end|>", "unk_token": "<|endoftext|>", "pad_token": "<|im_end|>"}
    compared = 0
    for (label, request), answer in zip(GRID, answers):
        expected = chats.render_with_jinja2(template, request, specials)
        assert answer.get("text") == expected, label
        compared += expected is not None
    assert compared > 250


def test_all_others(cache, probe, tmp_path):
    """Every other template there is: whatever Jinja2 renders, we render the same."""
    compared = templates = 0
    for path in sorted((cache / "templates").glob("*.jinja")):
        if path.stem in REQUIRED or path.stem in EXCLUDED:
            continue
        templates += 1
        compared += compare(path.stem, path.read_text(encoding="utf-8"), probe, tmp_path / path.stem)
    assert templates >= 60
    assert compared > 20_000
    print(f"{templates} templates, {compared} prompts")


def neutral(value):
    """The same chat with letters in place of what control tokens are made of."""
    if isinstance(value, str):
        return value.translate(str.maketrans("<>|[]~", "xxxxxx"))
    if isinstance(value, list):
        return [neutral(item) for item in value]
    if isinstance(value, dict):
        return {neutral(key): neutral(item) if key not in ("role", "type") else item for key, item in value.items()}
    return value


@pytest.mark.parametrize("name", REQUIRED)
def test_messages_make_no_control_tokens(name, cache, probe, tmp_path):
    """The control tokens of a hostile chat are those of the same chat in harmless letters, one for one."""
    source = (cache / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    hostile = [request for label, request in GRID if "injection" in label or "odd tool" in label]
    hostile = [{**request, "render": chats.open_arguments(request["render"])} for request in hostile]
    harmless = [{**r, **{key: neutral(r[key]) for key in ("render", "tools") if key in r}} for r in hostile]
    model = probe(write_model(tmp_path / "model", source))
    seen = 0
    for request, bad, good in zip(hostile, model.ask(hostile), model.ask(harmless)):
        assert ("error" in bad) == ("error" in good), request
        if "error" in bad:
            continue
        control = [[i for i in answer["ids"] if 256 <= i < 300] for answer in (bad, good)]
        assert control[0] == control[1], request
        seen += len(control[0])
    assert seen > 100


@pytest.mark.parametrize("name", REQUIRED)
def test_random_chats(name, cache, probe, tmp_path):
    """Fresh chats of tag fragments: Jinja2's text, nothing refused that it renders, and turns that open and close by
    the template alone."""
    seed = int.from_bytes(os.urandom(6), "little")
    print(f"seed {seed}")
    r = Random(seed)
    source = (cache / "templates" / f"{name}.jinja").read_text(encoding="utf-8")
    template = chats.environment().from_string(source)
    requests = [chats.random_chat(r) for _ in range(600)]
    opened, closed = (CONTROL.index(t) for t in (("]~b]", "[e~[") if name == "MiniMax-M3" else ("<|im_start|>", "<|im_end|>")))
    rendered = 0
    for request, answer in zip(requests, probe(write_model(tmp_path / "model", source)).ask(requests)):
        expected = chats.render_with_jinja2(template, request, SPECIALS)
        if expected is None:
            continue
        assert answer.get("text") == expected, (request, answer.get("error"))
        turns = [i - 256 for i in answer["ids"] if 256 <= i < 300]
        if name == "MiniMax-M3":    # begins with a token of its own
            assert turns.pop(0) == CONTROL.index("]~!b["), request
        assert all(t == (closed if k % 2 else opened) for k, t in enumerate(turns)), request
        rendered += 1
    assert rendered > 300
