"""What the scripted model says to the SDKs' tests."""

from task import xml_call

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
