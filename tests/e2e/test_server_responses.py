"""The official openai SDK's responses against `sparkinfer serve` with the real SmolLM2 on the CPU: streams, tools, the store."""

import json

import openai
import pytest
from gguf_edit import Gguf, string_value
from test_serve import Serve
from test_server_openai import TOOL_TEMPLATE

LONG = "You answer in one short sentence. " + "Every word of this counts, and none of it changes from turn to turn. " * 20
TOOLS = [{"type": "function", "name": "read_file", "description": "Reads a file.", "strict": True, "parameters": {
    "type": "object", "properties": {"path": {"type": "string", "maxLength": 20}, "lines": {"type": "integer"}},
    "required": ["path", "lines"], "additionalProperties": False}},
    {"type": "namespace", "name": "box", "description": "A box.", "tools": [
        {"type": "function", "name": "open", "description": "Opens it.", "parameters": {"type": "object", "properties": {}}}]},
    {"type": "web_search"}]


def client_of(server):
    return openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0, timeout=300)


@pytest.fixture(scope="module")
def client(binary, smollm2):
    with Serve(binary, smollm2, "--ctx", 1024) as server:
        yield client_of(server)


@pytest.fixture(scope="module")
def tool_client(binary, smollm2, tmp_path_factory):
    path = tmp_path_factory.mktemp("responses_tools") / "tools.gguf"
    file = Gguf(smollm2)
    file.set("tokenizer.chat_template", string_value(TOOL_TEMPLATE))
    file.write(path)
    with Serve(binary, path, "--ctx", 1024) as server:
        yield client_of(server)


def ask(client, input="Name three colours.", **more):
    return client.responses.create(**{"model": "sparkinfer", "input": input, "max_output_tokens": 24, "temperature": 0, **more})


# Risk: the last object is not what was streamed, or events lack what clients find their way by.
def test_stream_and_response_agree(client):
    whole = ask(client)
    assert whole.object == "response" and whole.status in ("completed", "incomplete") and whole.output_text
    events = list(ask(client, stream=True))
    assert [event.sequence_number for event in events] == list(range(len(events)))
    assert [events[0].type, events[1].type] == ["response.created", "response.in_progress"]
    assert events[-1].type in ("response.completed", "response.incomplete")
    final = events[-1].response
    done = [event.item for event in events if event.type == "response.output_item.done"]
    assert [item.to_dict() for item in done] == [item.to_dict() for item in final.output]
    text = "".join(event.delta for event in events if event.type == "response.output_text.delta")
    assert text == final.output_text == whole.output_text
    assert sum(event.type == "response.output_text.delta" for event in events) > 3, "the text came in one burst"
    assert final.usage.input_tokens == whole.usage.input_tokens
    assert final.usage.total_tokens == final.usage.input_tokens + final.usage.output_tokens
    with client.responses.stream(model="sparkinfer", input="Name three colours.", temperature=0, max_output_tokens=200,
                                 text={"format": {"type": "text"}}) as stream:
        for _ in stream:
            pass
        assert stream.get_final_response().output_text.startswith(text)


# Risk: a conversation goes on from another one, or from nothing; what was deleted is still there.
def test_the_store(client):
    first = ask(client, instructions=LONG)
    second = ask(client, "And one more?", instructions=LONG, previous_response_id=first.id)
    assert second.previous_response_id == first.id
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens >= first.usage.input_tokens - 64
    same = ask(client, [{"role": "user", "content": "Name three colours."}, *(item.to_dict() for item in first.output),
                        {"role": "user", "content": "And one more?"}], instructions=LONG, store=False)
    assert same.usage.input_tokens == second.usage.input_tokens and same.output_text == second.output_text
    kept = client.responses.retrieve(first.id)
    assert kept.to_dict() == first.to_dict()
    client.responses.delete(first.id)
    for lost in first.id, same.id, "resp_unknown":
        with pytest.raises(openai.NotFoundError):
            client.responses.retrieve(lost)
        with pytest.raises(openai.NotFoundError) as gone:
            ask(client, previous_response_id=lost)
        assert lost in str(gone.value) and gone.value.param == "previous_response_id"
    assert ask(client, "More.", previous_response_id=second.id).output_text, "each holds its whole conversation"


# Risk: the loop of an agent breaks: arguments that do not fit, a name that it does not know, a result not heard.
def test_tools(tool_client):
    first = ask(tool_client, tools=TOOLS, tool_choice={"type": "function", "name": "read_file"}, max_output_tokens=100,
                parallel_tool_calls=False)
    (call,) = [item for item in first.output if item.type == "function_call"]
    assert call.name == "read_file" and call.status == "completed"
    assert set(json.loads(call.arguments)) == {"path", "lines"}
    events = list(ask(tool_client, tools=TOOLS, tool_choice={"type": "function", "name": "read_file"}, stream=True,
                      max_output_tokens=100, parallel_tool_calls=False))
    pieces = "".join(event.delta for event in events if event.type == "response.function_call_arguments.delta")
    assert json.loads(pieces) == json.loads(call.arguments)
    second = ask(tool_client, [{"type": "function_call_output", "call_id": call.call_id,
                                "output": [{"type": "input_text", "text": "red"}]}],
                 tools=TOOLS, previous_response_id=first.id)
    assert second.usage.input_tokens > first.usage.input_tokens
    assert second.usage.input_tokens_details.cached_tokens > 0
    spaced = ask(tool_client, tools=TOOLS, tool_choice={"type": "function", "name": "open", "namespace": "box"},
                 max_output_tokens=100, parallel_tool_calls=False)
    (call,) = [item for item in spaced.output if item.type == "function_call"]
    assert (call.name, call.namespace) == ("open", "box")


# Risk: a format that was asked for is not kept to.
def test_formats(client):
    schema = {"type": "object", "properties": {"colour": {"type": "string", "maxLength": 12}, "n": {"type": "integer"}},
              "required": ["colour", "n"], "additionalProperties": False}
    found = ask(client, max_output_tokens=80, text={"format": {"type": "json_schema", "name": "x", "schema": schema}})
    assert set(json.loads(found.output_text)) == {"colour", "n"}
    cut = ask(client, max_output_tokens=3)
    assert cut.status == "incomplete" and cut.incomplete_details.reason == "max_output_tokens"
    assert cut.output[-1].status == "incomplete" and cut.usage.output_tokens == 3
    rated = ask(client, max_output_tokens=5, include=["message.output_text.logprobs"], top_logprobs=2)
    logprobs = rated.output[0].content[0].logprobs
    assert len(logprobs) == 5 and all(len(token.top_logprobs) == 2 and token.logprob <= 0 for token in logprobs)


# Risk: errors that agents do not recognise; what cannot be done is done otherwise.
def test_errors(client):
    for field, more in [("truncation", {"truncation": "auto"}), ("background", {"background": True}),
                        ("max_output_tokens", {"max_output_tokens": 0}), ("temperature", {"temperature": 9}),
                        ("input[0].content[0]", {"input": [{"role": "user", "content": [
                            {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}]}]})]:
        with pytest.raises(openai.BadRequestError) as bad:
            ask(client, **more)
        assert bad.value.param == field and field in str(bad.value)
    with pytest.raises(openai.BadRequestError) as long:
        ask(client, "sea " * 3000)
    assert long.value.code == "context_length_exceeded" and "maximum context length is 1024 tokens" in str(long.value)
    events = list(ask(client, "sea " * 3000, stream=True))
    assert [event.type for event in events] == ["response.created", "response.failed"]
    assert events[-1].response.error.code == "context_length_exceeded"
    skipped = ask(client, [{"type": "web_search_call", "id": "ws_1", "status": "completed"}, {"role": "user", "content": "Hi"}],
                  include=["reasoning.encrypted_content"], prompt_cache_key="k", max_output_tokens=2)
    assert skipped.output_text
