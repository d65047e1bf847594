"""Constrained decoding over real vocabularies: the JSON Schema test suite, random answers against an independent
validator, and what the masks cost. Unit tests over a small vocabulary are in src/text/*_test.cpp."""

import json
import random
import re
import statistics

import fetch
import pytest
from grammar_probe import GrammarProbe

jsonschema = pytest.importorskip("jsonschema", reason="not installed; run `make setup`")

# Instances that the grammar of a format allows although the format does not: calendars and leap seconds.
BEYOND_FORMATS = re.compile(r"\d{4}-02-29|:60")

TOOLS = [
    {"name": "read", "strict": True, "parameters": {
        "type": "object", "additionalProperties": False, "required": ["file_path"],
        "$schema": "http://json-schema.org/draft-07/schema#",
        "properties": {"file_path": {"type": "string", "description": "The file to read"},
                       "offset": {"type": "integer", "exclusiveMinimum": 0, "maximum": 9007199254740991},
                       "limit": {"type": "integer", "minimum": -9007199254740991}}}},
    {"name": "edit", "parameters": {
        "type": "object", "required": ["file_path", "edits"],
        "properties": {"file_path": {"type": "string"}, "replace_all": {"type": "boolean", "default": False},
                       "edits": {"type": "array", "minItems": 1, "maxItems": 1000000,
                                 "items": {"$ref": "#/$defs/edit"}}},
        "$defs": {"edit": {"type": "object", "properties": {"old": {"type": "string"}, "new": {"type": "string"}},
                           "required": ["old", "new"]}}}},
    {"name": "todo_write", "parameters": {
        "type": "object", "properties": {"todos": {"type": "array", "items": {"type": "object", "properties": {
            "content": {"type": "string", "minLength": 1},
            "status": {"type": "string", "enum": ["pending", "in_progress", "completed"]},
            "priority": {"anyOf": [{"const": 1}, {"const": 2}, {"type": "null"}]}},
            "required": ["content", "status"]}}}, "required": ["todos"]}},
    {"name": "mcp__tree__add", "parameters": {
        "properties": {"node": {"$ref": "#/definitions/node"}, "name": {"type": "string", "pattern": "[a-z]-[0-9]{2}"},
                       "mode": {"anyOf": [{"enum": ["fast", "slow"]}, {"type": "null"}]},
                       "zip": {"type": ["string", "integer"]}, "ratio": {"type": "number", "minimum": 0, "maximum": 1}},
        "required": ["node"],
        "definitions": {"node": {"type": "object", "required": ["id"], "additionalProperties": False,
                                 "properties": {"id": {"type": "integer", "minimum": 0, "maximum": 99},
                                                "children": {"type": "array", "maxItems": 2,
                                                             "items": {"$ref": "#/definitions/node"}}}}}}},
    {"name": "bash", "parameters": {
        "type": "object", "properties": {"command": {"type": "string", "maxLength": 200}, "timeout": {
            "type": "number", "maximum": 600000}, "env": {"type": "object", "additionalProperties": {"type": "string"}}},
        "required": ["command"]}},
    {"name": "now", "parameters": {"type": "object", "properties": {}}},
]
HINTS = ["</think>", "<tool_call>\n{\"name\": \"", "<tool_call>\n<function=", "<tool_call>", "\n</parameter>\n<parameter=",
         "\n</parameter>\n</function>\n</tool_call>", "}}\n</tool_call>", "\"}", "\"]", "null", "pending", "</parameter>\n"]


@pytest.fixture(scope="module")
def grammars(request, vocabulary):
    made = {}

    def probe(name):
        if name not in made:
            made[name] = GrammarProbe(request.config.getoption("--binary"), vocabulary(name))
        return made[name]

    return probe


def test_json_schema_suite(grammars):
    # Risk: a keyword is taken, but its grammar allows what it forbids.
    groups = fetch.json_schema_suite()
    requests = [{"schema": group["schema"], "strict": True,
                 "texts": [json.dumps(test["data"], ensure_ascii=False) for test in group["tests"]]}
                for group in groups]
    used = valid = taken = 0
    wrong = []
    for group, answer in zip(groups, grammars("qwen2").ask(requests)):
        if "error" in answer:
            assert re.match(r"the schema at (/\S+|the root): ", answer["error"]), answer["error"]
            continue
        used += 1
        for test, accepted in zip(group["tests"], answer["accepted"]):
            valid += test["valid"]
            taken += test["valid"] and accepted
            if accepted and not test["valid"] and not BEYOND_FORMATS.search(str(test["data"])):
                wrong.append((group["schema"], test["data"]))
    assert not wrong
    assert used >= 170 and valid >= 500 and taken >= 0.88 * valid, (used, valid, taken)


def check(schema, value):
    jsonschema.Draft202012Validator({**schema, "$schema": "https://json-schema.org/draft/2020-12/schema"}).validate(value)


@pytest.mark.parametrize("model, form", [("qwen3_6", "qwen_xml"), ("qwen2", "hermes_json"), ("smollm", "hermes_json")])
def test_random_answers(grammars, model, form):
    # Risk: tokens of a real vocabulary, chosen at random under the masks, make a call that breaks its schema.
    parameters = {tool["name"]: tool["parameters"] for tool in TOOLS}
    draws = random.Random(5)
    requests = [{"shape": {"format": form, "reasoning": draws.random() < 0.7, "inside": draws.random() < 0.5,
                           "tools": TOOLS, "choice": draws.choice(["required", "required", "auto", "read", "edit"]),
                           "parallel": draws.random() < 0.5},
                 "seed": seed, "steps": 400, "hints": HINTS} for seed in range(60)]
    ended = calls = 0
    for request, answer in zip(requests, grammars(model).ask(requests)):
        assert "error" not in answer, answer
        assert answer["broken"] == "", answer["text"]
        shape, text = request["shape"], answer["text"]
        inside = text.find("</think>", max(text.find("<tool_call>"), 0)) >= 0
        # JSON's numbers have no bounds, readers' have; a call that holds the reasoning's end is no call inside it.
        if not answer["ended"] or inside or re.search(r"[eE][+-]?\d{3}", text):
            continue
        ended += 1
        assert answer["whole"], text
        for name, arguments in answer["calls"]:
            calls += 1
            check(parameters[name], json.loads(arguments))
        found = len(answer["calls"])
        assert shape["choice"] == "auto" or found > 0, text
        assert shape["parallel"] or found < 2, text
        assert shape["choice"] not in parameters or all(n == shape["choice"] for n, _ in answer["calls"]), text
    assert ended >= 15 and calls >= 10, (ended, calls)


def test_random_json(grammars):
    # Risk: an answer of a schema is no JSON, or breaks the schema.
    requests = [{"shape": {"schema": tool["parameters"], "strict": False}, "seed": seed, "steps": 500, "hints": HINTS}
                for tool in TOOLS for seed in range(10)]
    ended = 0
    for request, answer in zip(requests, grammars("qwen3_6").ask(requests)):
        assert "error" not in answer and answer["broken"] == "", answer
        if answer["ended"] and not re.search(r"[eE][+-]?\d{3}", answer["text"]):
            ended += 1
            check(request["shape"]["schema"], json.loads(answer["text"]))
    assert ended >= 25, ended


@pytest.mark.parametrize("form", ["qwen_xml", "hermes_json"])
def test_mask_time(grammars, form):
    # Risk: masks of an ordinary answer of an agent take longer than the step that they are for.
    code = "#include <vector>\nint f(std::vector<int> v) { return v[0] < 5 ? 1 : v[1]; }  // \"quoted\" ü\n" * 20
    thought = "The user wants f to be called; first I read it, then (maybe) change 3 lines.\n\n" * 10
    call = f"<tool_call>\n<function=bash>\n<parameter=command>\n{code[:150]}\n</parameter>\n</function>\n</tool_call>\n" \
           f"<tool_call>\n<function=read>\n<parameter=file_path>\n{code}\n</parameter>\n</function>\n</tool_call>"
    if form == "hermes_json":
        call = f'<tool_call>\n{json.dumps({"name": "read", "arguments": {"file_path": code}})}\n</tool_call>'
    many = [{**tool, "name": f"{tool['name']}_{i}" if i else tool["name"]} for i in range(4) for tool in TOOLS]
    shape = {"format": form, "reasoning": True, "inside": True, "tools": many, "choice": "auto"}
    request = {"shape": shape, "replay": f"{thought}</think>\n\nFine.\n\n{call}"}
    first, again = grammars("qwen3_6").ask([request, request])
    assert first["ended"] and first["broken"] == "", first
    mean = statistics.mean(again["mask_us"])
    print(f"{form}: {len(again['mask_us'])} tokens of a vocabulary of 248,077, {len(many)} tools: mask mean {mean:.0f} us, "
          f"median {statistics.median(again['mask_us']):.0f}, most {max(again['mask_us']):.0f}; "
          f"grammar {first['grammar_ms']:.1f} + {first['compile_ms']:.1f} ms, from the cache {again['grammar_ms']:.2f} + "
          f"{again['compile_ms']:.2f} ms")
    assert mean < 1000 and max(again["mask_us"]) < 50000
