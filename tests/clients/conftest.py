"""The official SDKs against the product's server with a model that says what a script has."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parent / "serve"), str(HERE.parent / "agents")]

from server import ScriptedServer  # noqa: E402
from task import xml_call  # noqa: E402

WEATHER = {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
           "required": ["city"], "additionalProperties": False}
SCRIPT = {"rules": [
    {"contains": ["<tools>", "both cities"], "turn": 1, "think": "Two calls.",
     "say": xml_call("weather", {"city": "Oslo"}) + "\n" + xml_call("weather", {"city": "Rome"})},
    {"contains": ["<tools>", "weather in Oslo"], "turn": 1, "think": "I need the tool.",
     "say": "I look it up.\n\n" + xml_call("weather", {"city": "Oslo", "days": 2})},
    {"tail": ["4 degrees"], "turn": 2, "think": "Cold.", "say": "It is 4 degrees in Oslo."},
    {"contains": ["as JSON"], "think": "An object.", "say": '{"name": "Ada", "age": 36}'},
    {"contains": ["Count to a hundred"], "think": "Long.", "say": " ".join(map(str, range(1, 101)))},
    {"contains": ["Your favourite"], "turn": 2, "say": "As I said, blue."},
    {"contains": ["colour"], "think": "A question about me.", "say": "My favourite colour is blue."},
    {"contains": ["The sky"], "lacks": ["<|im_start|>"], "say": " is blue."},
]}


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with ScriptedServer(SCRIPT, "qwen35", tmp_path_factory.mktemp("scripted"),
                        ["--slots", "4", "--ctx", "4096", "--alias", "x"]) as found:
        yield found
    assert found.failures() == []
    assert found.process.returncode == 0, found.tail()
