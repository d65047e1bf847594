"""The official anthropic SDK against `sparkinfer serve` with the real SmolLM2 on the CPU: messages, streams, tools, counts, errors."""

import anthropic
import pytest
from gguf_edit import Gguf, string_value
from test_serve import Serve
from test_server_openai import TOOL_TEMPLATE

LONG = "You answer in one short sentence. " + "Every word of this counts, and none of it changes from turn to turn. " * 20
TOOLS = [{"name": "read_file", "description": "Reads a file.", "input_schema": {
    "type": "object", "properties": {"path": {"type": "string", "maxLength": 20}, "lines": {"type": "integer"}},
    "required": ["path", "lines"], "additionalProperties": False}}]


def user(text):
    return {"role": "user", "content": text}


ASK = [user("Name three colours.")]
GREEDY = {"temperature": 0}  # this SDK has no parameter for it any more


def client_of(server):
    return anthropic.Anthropic(base_url=f"http://127.0.0.1:{server.port}", api_key="none", max_retries=0, timeout=300)


@pytest.fixture(scope="module")
def client(binary, smollm2):
    with Serve(binary, smollm2, "--ctx", 1024) as server:
        yield client_of(server)


@pytest.fixture(scope="module")
def tool_client(binary, smollm2, tmp_path_factory):
    path = tmp_path_factory.mktemp("messages_tools") / "tools.gguf"
    file = Gguf(smollm2)
    file.set("tokenizer.chat_template", string_value(TOOL_TEMPLATE))
    file.write(path)
    with Serve(binary, path, "--ctx", 1024) as server:
        yield client_of(server)


def ask(client, messages=ASK, **more):
    return client.messages.create(**{"model": "sparkinfer", "max_tokens": 24, "extra_body": GREEDY, "messages": messages, **more})


def prompt_tokens(usage):
    return usage.input_tokens + usage.cache_read_input_tokens + usage.cache_creation_input_tokens


def text_of(message):
    return "".join(block.text for block in message.content if block.type == "text")


# Risk: what is streamed is not what is answered at once, or the SDK cannot put it together.
def test_stream_and_message_agree(client):
    whole = ask(client)
    assert whole.type == "message" and whole.role == "assistant" and text_of(whole)
    with client.messages.stream(model="sparkinfer", max_tokens=24, extra_body=GREEDY, messages=ASK) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_message()
    assert text_of(final) == text_of(whole)
    assert final.stop_reason == whole.stop_reason
    assert prompt_tokens(final.usage) == prompt_tokens(whole.usage)
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert kinds[0] == "message_start" and kinds[-1] == "message_stop" and kinds[-2] == "message_delta"
    assert kinds.count("content_block_start") == kinds.count("content_block_stop") == 1
    assert kinds.count("text") > 3, "the text came in one burst"


# Risk: the client does not learn why an answer ended, or reads the text that ended it.
def test_ends(client):
    whole = text_of(ask(client))
    cut = ask(client, max_tokens=3)
    assert cut.stop_reason == "max_tokens" and cut.usage.output_tokens == 3
    word = whole.split()[3]
    stopped = ask(client, stop_sequences=["never said", word])
    assert stopped.stop_reason == "stop_sequence" and stopped.stop_sequence == word
    assert text_of(stopped) == whole[: whole.index(word)]
    clamped = ask(client, max_tokens=32000, stop_sequences=[word])
    assert clamped.stop_reason == "stop_sequence", "more than the context has left is no error"


# Risk: a text at the end that the answer begins with is taken for a finished turn.
def test_goes_on_with_a_text(client):
    begun = ask(client, ASK + [{"role": "assistant", "content": "The three colours are red,"}])
    assert text_of(begun) and not text_of(begun).startswith("The three")
    assert prompt_tokens(begun.usage) > prompt_tokens(ask(client).usage)


# Risk: marks for a cache, or blocks in place of a string, change the prompt: every turn is computed from the start.
def test_history_is_cached_whatever_its_form(client):
    first = ask(client, system=LONG)
    blocks = [{"type": "text", "text": LONG, "cache_control": {"type": "ephemeral"}}]
    again = ask(client, [user([{"type": "text", "text": "Name three "}, {"type": "text", "text": "colours."}])],
                system=blocks)
    assert prompt_tokens(again.usage) == prompt_tokens(first.usage)
    assert again.usage.cache_read_input_tokens >= prompt_tokens(first.usage) - 64
    assert text_of(again) == text_of(first)
    turn = [*ASK, {"role": "assistant", "content": [{"type": "text", "text": text_of(first)}]}, user("And one more?")]
    more = ask(client, turn, system=LONG)
    assert more.usage.cache_read_input_tokens >= prompt_tokens(first.usage) - 64


# Risk: a client compacts too late, since it was told fewer tokens than there are.
def test_counts(client, tool_client):
    for who, more in (client, {}), (client, {"system": LONG}), (tool_client, {"tools": TOOLS, "system": "Be brief."}):
        counted = who.messages.count_tokens(model="sparkinfer", messages=ASK, **more)
        assert counted.input_tokens == prompt_tokens(ask(who, max_tokens=1, **more).usage)
    over = client.messages.count_tokens(model="sparkinfer", messages=[user("sea " * 3000)])
    assert over.input_tokens > 3000, "what is too long is counted too"


# Risk: the loop of an agent breaks: arguments that do not fit, a result that is not heard.
def test_tools(tool_client):
    forced = {"tools": TOOLS, "tool_choice": {"type": "any", "disable_parallel_tool_use": True}, "max_tokens": 100}
    first = ask(tool_client, **forced)
    assert first.stop_reason == "tool_use"
    (call,) = [block for block in first.content if block.type == "tool_use"]
    assert call.name == "read_file" and set(call.input) == {"path", "lines"} and isinstance(call.input["lines"], int)
    with tool_client.messages.stream(model="sparkinfer", extra_body=GREEDY, messages=ASK, **forced) as stream:
        pieces = "".join(event.partial_json for event in stream if event.type == "input_json")
        final = stream.get_final_message()
    assert pieces.startswith("{") and pieces.endswith("}")
    assert [block.input for block in final.content if block.type == "tool_use"] == [call.input]
    history = [*ASK, {"role": "assistant", "content": [block.model_dump(exclude_none=True) for block in first.content]},
               user([{"type": "tool_result", "tool_use_id": call.id, "content": [{"type": "text", "text": "red"}]}])]
    second = ask(tool_client, history, tools=TOOLS)
    assert prompt_tokens(second.usage) > prompt_tokens(first.usage)
    assert second.usage.cache_read_input_tokens > 0


# Risk: errors that agents do not recognise, so that they try again for ever.
def test_errors(client):
    with pytest.raises(anthropic.BadRequestError) as long:
        ask(client, [user("sea " * 3000)])
    assert long.value.body["type"] == "error" and long.value.body["error"]["type"] == "invalid_request_error"
    assert "prompt is too long: " in str(long.value) and " tokens > 1024 maximum" in str(long.value)
    with pytest.raises(anthropic.NotFoundError) as unknown:
        ask(client, model="somebody-else")
    assert unknown.value.body["error"]["type"] == "not_found_error" and "somebody-else" in str(unknown.value)
    image = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}}
    for field, more in [("max_tokens", {"max_tokens": -1}), ("temperature", {"extra_body": {"temperature": 9}}),
                        ("messages[0].content[0]", {"messages": [user([image])]}),
                        ("messages[0].role", {"messages": [{"role": "robot", "content": "x"}]})]:
        with pytest.raises(anthropic.BadRequestError) as bad:
            ask(client, **more)
        assert field in str(bad.value), field


# Risk: fields of newer clients are refused.
def test_unknown_fields_pass(client):
    more = {"metadata": {"user_id": "u"}, "context_management": {"edits": []}, "some_new_field": [1]}
    found = client.beta.messages.create(model="sparkinfer", max_tokens=4, messages=ASK, betas=["interleaved-thinking-2025-05-14"],
                                        thinking={"type": "disabled"}, extra_body=more)
    assert text_of(found)
