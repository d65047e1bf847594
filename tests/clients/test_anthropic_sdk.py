"""The official `anthropic` SDK: its typed models must take every answer, its stream helper every event.

Risk: an answer that only our own tests can read.
"""

import anthropic
import pytest
from sdk_script import WEATHER

TOOL = {"name": "weather", "description": "The weather of a city.", "input_schema": WEATHER}
ANSWER = "My favourite colour is blue."


@pytest.fixture(scope="module")
def client(server):
    return anthropic.Anthropic(base_url=server.url, api_key="key", max_retries=0, timeout=300)


def user(text):
    return [{"role": "user", "content": text}]


def texts(message):
    return "".join(block.text for block in message.content if block.type == "text")


def test_message(client):
    found = client.messages.create(model="x", max_tokens=200, messages=user("Which colour do you like?"))
    assert texts(found) == ANSWER
    assert found.stop_reason == "end_turn"
    assert found.usage.output_tokens > 0


def test_stream(client):
    with client.messages.stream(model="x", max_tokens=200, messages=user("Which colour do you like?")) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == texts(final) == ANSWER


def test_thinking(client):
    found = client.messages.create(model="x", max_tokens=2000, messages=user("Which colour do you like?"),
                                   thinking={"type": "enabled", "budget_tokens": 1024})
    assert [block.type for block in found.content] == ["thinking", "text"]
    assert found.content[0].thinking.strip() == "A question about me."


def test_tool_loop(client):
    messages = user("What is the weather in Oslo?")
    first = client.messages.create(model="x", max_tokens=500, messages=messages, tools=[TOOL])
    assert first.stop_reason == "tool_use"
    call = next(block for block in first.content if block.type == "tool_use")
    assert (call.name, call.input) == ("weather", {"city": "Oslo", "days": 2})
    messages += [{"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
                 {"role": "user", "content": [{"type": "tool_result", "tool_use_id": call.id, "content": "4 degrees"}]}]
    second = client.messages.create(model="x", max_tokens=500, messages=messages, tools=[TOOL])
    assert texts(second) == "It is 4 degrees in Oslo."
    prompt = first.usage.input_tokens + (first.usage.cache_read_input_tokens or 0)
    assert second.usage.cache_read_input_tokens >= 0.95 * prompt


def test_streamed_tool_calls(client):
    with client.messages.stream(model="x", max_tokens=500, messages=user("Compare both cities."), tools=[TOOL]) as stream:
        pieces = sum(event.type == "input_json" for event in stream)
        final = stream.get_final_message()
    assert [block.input for block in final.content if block.type == "tool_use"] == [{"city": "Oslo"}, {"city": "Rome"}]
    assert pieces >= 4, "arguments came in one piece each"


def test_count_tokens(client):
    messages = user("Which colour do you like?")
    counted = client.messages.count_tokens(model="x", messages=messages, tools=[TOOL], system="You answer.")
    found = client.messages.create(model="x", max_tokens=1, messages=messages, tools=[TOOL], system="You answer.")
    assert counted.input_tokens == found.usage.input_tokens + (found.usage.cache_read_input_tokens or 0) + (
        found.usage.cache_creation_input_tokens or 0)


def test_length(client):
    found = client.messages.create(model="x", max_tokens=12, messages=user("Count to a hundred"))
    assert found.stop_reason == "max_tokens"
    assert found.usage.output_tokens == 12


def test_errors(client):
    with pytest.raises(anthropic.BadRequestError) as bad:
        client.messages.create(model="x", max_tokens=-1, messages=user("x"))
    assert "max_tokens" in str(bad.value)
    with pytest.raises(anthropic.BadRequestError) as long:
        client.messages.create(model="x", max_tokens=10, messages=user("sea " * 6000))
    assert "prompt is too long" in str(long.value)
    assert "> 4096 maximum" in str(long.value)
