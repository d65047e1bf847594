"""The official `openai` SDK: its typed models must take every answer, its stream helpers every event.

Risk: an answer that only our own tests can read.
"""

import json

import openai
import pytest
from pydantic import BaseModel
from sdk_script import WEATHER

TOOL = {"type": "function", "function": {"name": "weather", "description": "The weather of a city.", "parameters": WEATHER}}
ANSWER = "My favourite colour is blue."


@pytest.fixture(scope="module")
def client(server):
    return openai.OpenAI(base_url=f"{server.url}/v1", api_key="key", max_retries=0, timeout=300)


def user(text):
    return [{"role": "user", "content": text}]


def test_models(client):
    listed = client.models.list()
    assert len(listed.data) >= 1
    assert client.models.retrieve(listed.data[0].id).id == listed.data[0].id


def test_chat(client):
    found = client.chat.completions.create(model="x", messages=user("Which colour do you like?"))
    choice = found.choices[0]
    assert choice.message.content == ANSWER
    assert choice.message.reasoning_content.strip() == "A question about me."
    assert choice.finish_reason == "stop"
    assert found.usage.total_tokens == found.usage.prompt_tokens + found.usage.completion_tokens
    assert found.usage.completion_tokens_details.reasoning_tokens > 0


def test_chat_without_thinking(client):
    found = client.chat.completions.create(model="x", messages=user("Which colour do you like?"),
                                           extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    assert found.choices[0].message.content == ANSWER
    assert not getattr(found.choices[0].message, "reasoning_content", None)


def test_stream(client):
    text, reasoning, usage, reasons = "", "", None, []
    for chunk in client.chat.completions.create(model="x", messages=user("Which colour do you like?"), stream=True,
                                                stream_options={"include_usage": True}):
        usage = chunk.usage or usage
        for choice in chunk.choices:
            text += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning_content", None) or ""
            reasons += [choice.finish_reason] if choice.finish_reason else []
    assert (text, reasoning.strip(), reasons) == (ANSWER, "A question about me.", ["stop"])
    assert usage.completion_tokens > 0


def test_tool_loop(client):
    messages = user("What is the weather in Oslo?")
    first = client.chat.completions.create(model="x", messages=messages, tools=[TOOL])
    message = first.choices[0].message
    assert first.choices[0].finish_reason == "tool_calls"
    assert message.content == "I look it up."
    call = message.tool_calls[0]
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"city": "Oslo", "days": 2})
    messages += [message.model_dump(exclude_none=True),
                 {"role": "tool", "tool_call_id": call.id, "content": "4 degrees"}]
    second = client.chat.completions.create(model="x", messages=messages, tools=[TOOL])
    assert second.choices[0].message.content == "It is 4 degrees in Oslo."
    assert second.usage.prompt_tokens_details.cached_tokens >= 0.95 * first.usage.prompt_tokens


def test_streamed_tool_calls(client):
    with client.chat.completions.stream(model="x", messages=user("Compare both cities."), tools=[TOOL]) as stream:
        pieces = sum(event.type == "tool_calls.function.arguments.delta" for event in stream)
        message = stream.get_final_completion().choices[0].message
    assert [json.loads(call.function.arguments) for call in message.tool_calls] == [{"city": "Oslo"}, {"city": "Rome"}]
    assert len({call.id for call in message.tool_calls}) == 2
    assert pieces >= 4, "arguments came in one piece each"


class Person(BaseModel):
    name: str
    age: int


def test_structured_output(client):
    found = client.chat.completions.parse(model="x", messages=user("A person as JSON."), response_format=Person)
    assert found.choices[0].message.parsed == Person(name="Ada", age=36)


def test_length(client):
    found = client.chat.completions.create(model="x", messages=user("Count to a hundred"), max_tokens=12)
    assert found.choices[0].finish_reason == "length"
    assert found.usage.completion_tokens == 12


def test_logprobs(client):
    found = client.chat.completions.create(model="x", messages=user("Which colour do you like?"), logprobs=True,
                                           top_logprobs=2)
    content = found.choices[0].logprobs.content
    assert b"".join(bytes(token.bytes) for token in content).decode().endswith(ANSWER)
    assert all(token.logprob <= 0 and len(token.top_logprobs) == 2 for token in content)


def test_completions(client):
    found = client.completions.create(model="x", prompt="The sky", max_tokens=20)
    assert found.choices[0].text == " is blue."
    streamed = "".join(chunk.choices[0].text for chunk in
                       client.completions.create(model="x", prompt="The sky", max_tokens=20, stream=True) if chunk.choices)
    assert streamed == " is blue."


def test_responses(client):
    found = client.responses.create(model="x", input="sea " * 200 + "Which colour do you like?")
    assert found.output_text == ANSWER
    assert found.status == "completed"
    again = client.responses.create(model="x", input="Your favourite?", previous_response_id=found.id)
    assert again.output_text == "As I said, blue."
    assert again.usage.input_tokens_details.cached_tokens >= 128


def test_responses_stream(client):
    kinds, text, last = [], "", -1
    for event in client.responses.create(model="x", input="Which colour do you like?", stream=True):
        kinds.append(event.type)
        assert event.sequence_number == last + 1
        last = event.sequence_number
        text += event.delta if event.type == "response.output_text.delta" else ""
    assert text == ANSWER
    assert kinds[:2] == ["response.created", "response.in_progress"]
    assert kinds[-1] == "response.completed"
    assert event.response.output_text == ANSWER


def test_responses_tool_loop(client):
    tool = {"type": "function", "name": "weather", "parameters": WEATHER, "strict": False}
    items = user("What is the weather in Oslo?")
    first = client.responses.create(model="x", input=items, tools=[tool])
    call = next(item for item in first.output if item.type == "function_call")
    assert json.loads(call.arguments) == {"city": "Oslo", "days": 2}
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "4 degrees"})
    assert client.responses.create(model="x", input=items, tools=[tool]).output_text == "It is 4 degrees in Oslo."


def test_errors(client):
    with pytest.raises(openai.BadRequestError) as bad:
        client.chat.completions.create(model="x", messages=user("x"), temperature=-3)
    assert bad.value.param == "temperature"
    with pytest.raises(openai.BadRequestError) as long:
        client.chat.completions.create(model="x", messages=user("sea " * 6000))
    assert long.value.code == "context_length_exceeded"
    assert "maximum context length is 4096 tokens" in long.value.message
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("no-such-model")
