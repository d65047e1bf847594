"""Risk: `convert` makes a file of what it does not understand, or leaves half of one."""

import json
import shutil

import gguf
import pytest

from tiny_model import VARIANTS, write_hf


@pytest.fixture
def folder(tmp_path):
    write_hf(VARIANTS["llama"], tmp_path / "model")
    return tmp_path / "model"


def edit(path, change):
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(content))


def refused_for(change, file="tokenizer.json"):
    return lambda folder: edit(folder / file, change)


BROKEN = {
    "no tokenizer": (lambda folder: (folder / "tokenizer.json").unlink(), "tokenizer.json"),
    "no vocabulary": (refused_for(lambda t: t["model"].pop("vocab")), "vocab"),
    "no merges": (refused_for(lambda t: t["model"].pop("merges")), "merges"),
    "odd merge": (refused_for(lambda t: t["model"]["merges"].insert(0, ["a"])), "merge 0"),
    "id too large": (refused_for(lambda t: t["model"]["vocab"].update({"zz": 512})), "zz"),
    "negative id": (refused_for(lambda t: t["model"]["vocab"].update({"zz": -1})), "zz"),
    "id that is no number": (refused_for(lambda t: t["model"]["vocab"].update({"zz": "x"})), "zz"),
    "id twice": (refused_for(lambda t: t["model"]["vocab"].update({"zz": 3})), "same id 3"),
    "unigram": (refused_for(lambda t: t["model"].update(type="Unigram")), "Unigram"),
    "byte fallback": (refused_for(lambda t: t["model"].update(byte_fallback=True)), "byte_fallback"),
    "prepends": (refused_for(lambda t: t.update(normalizer={"type": "Prepend"})), "Prepend"),
    "unknown pattern": (
        refused_for(lambda t: t["pre_tokenizer"]["pretokenizers"].insert(
            0, {"type": "Split", "pattern": {"Regex": "[a-z]+"}})), "[a-z]+"),
    "no pre-tokenizer": (refused_for(lambda t: t.update(pre_tokenizer=None)), "ByteLevel"),
    "no object": (lambda folder: (folder / "tokenizer.json").write_text("[1]"), "tokenizer.json"),
    "unknown model": (refused_for(lambda c: c.update(model_type="mamba"), "config.json"), "mamba"),
    "other shape": (refused_for(lambda c: c.update(intermediate_size=128), "config.json"), "mlp."),
}  # fmt: skip


@pytest.mark.parametrize("case", BROKEN)
def test_what_is_not_understood_is_refused(refused, folder, tmp_path, case):
    damage, word = BROKEN[case]
    damage(folder)
    assert word in refused(3, "convert", folder, tmp_path / "out.gguf")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["model"]


def test_words_that_are_off(refused, sparkinfer, folder, tmp_path):
    before = sorted(path.read_bytes() for path in folder.iterdir())
    assert "input" in refused(2, "convert", folder, folder / "model.safetensors")
    assert "input" in refused(2, "convert", folder, folder / "config.json")
    (tmp_path / "link.gguf").symlink_to(folder / "tokenizer.json")
    assert "input" in refused(2, "convert", folder, tmp_path / "link.gguf")
    assert sorted(path.read_bytes() for path in folder.iterdir()) == before
    for _ in range(2):
        sparkinfer("convert", folder, folder / "out.gguf")  # beside its input, and replaced
    assert "missing" in refused(3, "convert", folder, tmp_path / "missing" / "out.gguf")
    assert "nothere" in refused(3, "convert", tmp_path / "nothere", tmp_path / "out.gguf")
    sparkinfer("convert", folder, tmp_path / "out.gguf")
    assert "GGUF" in refused(3, "convert", tmp_path / "out.gguf", tmp_path / "again.gguf")


def test_the_result_speaks_as_the_folder_does(run_json, sparkinfer, folder, tmp_path):
    sparkinfer("convert", folder, tmp_path / "out.gguf")
    answers = [run_json(model, "the engine reads", 24) for model in (folder, tmp_path / "out.gguf")]
    assert answers[0]["token_ids"] == answers[1]["token_ids"]
    assert answers[0]["prompt_token_ids"] == answers[1]["prompt_token_ids"]


def test_padding_kinds_and_templates(sparkinfer, folder, tmp_path):
    """Rows without a token, added tokens that are text, several templates, a token put in front by the post-processor."""

    def change(tokenizer):
        tokenizer["added_tokens"][0] |= {"content": "<think>", "special": False}
        tokenizer["added_tokens"][2] |= {"special": False}  # <|im_end|> still looks like control
        gone = next(t for t, i in tokenizer["model"]["vocab"].items() if i == 508)
        tokenizer["model"]["vocab"].pop(gone)
        tokenizer["model"]["merges"].pop()
        tokenizer["post_processor"] = {"type": "TemplateProcessing", "single": [
            {"SpecialToken": {"id": "<|im_start|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]}  # fmt: skip

    edit(folder / "tokenizer.json", change)
    edit(folder / "tokenizer_config.json", lambda c: (c.pop("add_bos_token"), c.update(
        chat_template=[{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}],
        eos_token={"content": "<|im_end|>"})))  # fmt: skip
    sparkinfer("convert", folder, tmp_path / "out.gguf")
    fields = {name: field.contents() for name, field in gguf.GGUFReader(tmp_path / "out.gguf").fields.items()}
    assert fields["tokenizer.ggml.tokens"][508:] == ["[PAD508]", "<think>", "<|im_start|>", "<|im_end|>"]
    assert fields["tokenizer.ggml.token_type"][508:] == [5, 4, 3, 3]
    assert fields["tokenizer.ggml.add_bos_token"] is True and fields["tokenizer.ggml.eos_token_id"] == 511
    assert fields["tokenizer.chat_template"] == "D" and fields["tokenizer.chat_template.tool_use"] == "T"


def test_llama3_scaling_becomes_a_tensor(sparkinfer, folder, tmp_path):
    scaling = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
               "original_max_position_embeddings": 256}  # fmt: skip
    edit(folder / "config.json", lambda c: c.update(rope_scaling=scaling))
    sparkinfer("convert", folder, tmp_path / "out.gguf")
    factors = next(t for t in gguf.GGUFReader(tmp_path / "out.gguf").tensors if t.name == "rope_freqs.weight").data
    assert factors[0] == 1 and factors[-1] == pytest.approx(8) and (factors[1:] >= factors[:-1]).all()
    text = sparkinfer("tokenize", tmp_path / "out.gguf", "-p", "the engine").stdout
    assert text == sparkinfer("tokenize", folder, "-p", "the engine").stdout


def test_a_directory_name_with_a_slash(sparkinfer, folder, tmp_path):
    shutil.copytree(folder, tmp_path / "named")
    sparkinfer("convert", f"{tmp_path}/named/", tmp_path / "out.gguf")
    assert gguf.GGUFReader(tmp_path / "out.gguf").fields["general.name"].contents() == "named"
