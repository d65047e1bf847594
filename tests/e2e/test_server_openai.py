"""The official openai SDK against `sparkinfer serve` with the real SmolLM2 on the CPU: chat, streams, tools, structured
output, completions, errors. The HTTP plane and the other protocols have tests of their own."""

import json
import math
import socket
import subprocess
import time
import urllib.request

import openai
import pytest
from gguf_edit import Gguf, string_value
from pydantic import BaseModel

START_S = 180
ASK = [{"role": "user", "content": "Name three colours."}]
GREEDY = {"temperature": 0, "seed": 1}
# ChatML with tools in the JSON form: the real model, told of functions as models are that were trained on them.
TOOL_TEMPLATE = """{%- if tools %}<|im_start|>system
You may call functions:
{%- for tool in tools %}
{{ tool | tojson }}
{%- endfor %}
Call one like this:
<tool_call>
{"name": "a function", "arguments": {"its": "arguments"}}
</tool_call><|im_end|>
{% endif %}
{%- for m in messages %}<|im_start|>{{ 'user' if m.role == 'tool' else m.role }}
{% if m.role == 'tool' %}<tool_response>
{{ m.content }}
</tool_response>{% else %}{{ m.content or '' }}{% endif %}
{%- for call in m.tool_calls or [] %}
<tool_call>
{"name": {{ call.function.name | tojson }}, "arguments": {{ call.function.arguments | tojson }}}
</tool_call>
{%- endfor %}<|im_end|>
{% endfor %}
{%- if add_generation_prompt %}<|im_start|>assistant
{% endif %}"""
TOOLS = [{"type": "function", "function": {"name": "read_file", "description": "Reads a file.", "parameters": {
    "type": "object", "properties": {"path": {"type": "string", "maxLength": 20}, "lines": {"type": "integer"}},
    "required": ["path", "lines"], "additionalProperties": False}}},
    {"type": "function", "function": {"name": "now", "description": "Tells the time."}}]


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]


def serve(binary, model, log):
    """A server of the model and its client; ended by the one who asked."""
    port = free_port()
    process = subprocess.Popen([str(binary), "serve", str(model), "--port", str(port), "--ctx", "1024", "--slots", "4"],
                               stdin=subprocess.DEVNULL, stdout=log.open("wb"), stderr=subprocess.STDOUT)
    end = time.monotonic() + START_S
    while True:
        assert process.poll() is None and time.monotonic() < end, log.read_text()[-2000:]
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5)
            return process, openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0, timeout=300)
        except OSError:
            time.sleep(0.1)


def ended(process):
    process.terminate()
    try:
        return process.wait(30)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


@pytest.fixture(scope="module")
def client(binary, smollm2, tmp_path_factory):
    process, client = serve(binary, smollm2, tmp_path_factory.mktemp("serve") / "log")
    yield client
    assert ended(process) == 0


@pytest.fixture(scope="module")
def tool_client(binary, smollm2, tmp_path_factory):
    folder = tmp_path_factory.mktemp("serve_tools")
    file = Gguf(smollm2)
    file.set("tokenizer.chat_template", string_value(TOOL_TEMPLATE))
    file.write(folder / "tools.gguf")
    process, client = serve(binary, folder / "tools.gguf", folder / "log")
    yield client
    assert ended(process) == 0


def chat(client, messages=ASK, **more):
    return client.chat.completions.create(**{"model": client.models.list().data[0].id, "messages": messages,
                                             "max_tokens": 40, **GREEDY, **more})


def gathered(stream):
    """What a stream adds up to: content, calls by index, finish reason, usage, and the number of chunks with content."""
    content, calls, finish, usage, pieces, ids = "", {}, None, None, 0, set()
    for chunk in stream:
        ids.add((chunk.id, chunk.created, chunk.model, chunk.system_fingerprint))
        usage = chunk.usage or usage
        for choice in chunk.choices:
            content += choice.delta.content or ""
            pieces += bool(choice.delta.content)
            for call in choice.delta.tool_calls or []:
                name, arguments = calls.get(call.index, ("", ""))
                calls[call.index] = (name + (call.function.name or ""), arguments + (call.function.arguments or ""))
            finish = choice.finish_reason or finish
    assert len(ids) == 1
    return content, calls, finish, usage, pieces


# Risk: a plain chat does not work with the SDK, or its numbers are wrong.
def test_chat(client):
    answer = chat(client)
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.choices[0].message.role == "assistant" and answer.choices[0].message.content
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.usage.completion_tokens_details.reasoning_tokens == 0
    again = chat(client)
    assert again.choices[0].message.content == answer.choices[0].message.content
    assert again.usage.prompt_tokens_details.cached_tokens <= again.usage.prompt_tokens
    cut = chat(client, max_completion_tokens=3)
    assert cut.choices[0].finish_reason == "length" and cut.usage.completion_tokens == 3
    assert answer.choices[0].message.content.startswith(cut.choices[0].message.content)


# Risk: a stream tells something else than the whole response, or comes in one burst.
def test_streams(client):
    whole = chat(client)
    content, _, finish, usage, pieces = gathered(chat(client, stream=True, stream_options={"include_usage": True}))
    assert content == whole.choices[0].message.content and finish == whole.choices[0].finish_reason
    assert (usage.prompt_tokens, usage.completion_tokens) == (whole.usage.prompt_tokens, whole.usage.completion_tokens)
    assert pieces > 5
    assert gathered(chat(client, stream=True))[3] is None
    stop = content[8:12]  # the SDK's reader refuses answers that were cut by their length
    with client.chat.completions.stream(model="", messages=ASK, max_tokens=40, stop=stop, **GREEDY) as stream:
        final = stream.get_final_completion()
    assert final.choices[0].message.content == content[:content.index(stop)]


# Risk: a stop string comes out, or the client is not told which one it was.
def test_stops(client):
    text = chat(client).choices[0].message.content
    after_space = text.index(" ", 3) + 1  # the space and what follows it are one token
    for stop in (text[5:9], text[after_space:after_space + 2]):
        answer = chat(client, stop=[stop, "never said"]).choices[0]
        assert answer.message.content == text[:text.index(stop)]
        assert answer.finish_reason == "stop" and answer.stop_reason == stop
        assert gathered(chat(client, stop=stop, stream=True))[0] == answer.message.content


# Risk: seeds do nothing, several answers are one, or biases are ignored.
def test_sampling(client):
    hot = {"temperature": 1.0, "seed": 7, "max_tokens": 16}
    three = [c.message.content for c in chat(client, n=3, **hot).choices]
    assert len(set(three)) > 1
    assert three == [c.message.content for c in chat(client, n=3, **hot).choices]
    token = token_ids(client, "zebra")[0]
    forced = chat(client, logit_bias={str(token): 100}, max_tokens=3).choices[0].message.content
    assert forced.count("z") >= 1, forced
    assert len(chat(client, max_tokens=8, extra_body={"min_tokens": 8, "ignore_eos": True}).choices[0].message.content)


# Risk: log-probabilities do not belong to the text, or are no numbers.
def test_logprobs(client):
    choice = chat(client, logprobs=True, top_logprobs=3, max_tokens=8).choices[0]
    tokens = choice.logprobs.content
    assert len(tokens) == 8
    assert b"".join(bytes(t.bytes) for t in tokens).decode(errors="replace") == choice.message.content
    for t in tokens:
        assert math.isfinite(t.logprob) and t.logprob <= 0 and len(t.top_logprobs) == 3
        assert t.logprob == max(top.logprob for top in t.top_logprobs), "greedy takes the best"


class City(BaseModel):
    name: str
    inhabitants: int
    capital: bool


# Risk: an answer does not fit the schema that it was asked to fit.
def test_structured_output(client):
    messages = [{"role": "user", "content": "Tell me of Paris as JSON with name, inhabitants and capital."}]
    parsed = client.chat.completions.parse(model="", messages=messages, response_format=City, max_tokens=120, **GREEDY)
    assert isinstance(parsed.choices[0].message.parsed, City)
    plain = chat(client, messages, response_format={"type": "json_object"}, max_tokens=200).choices[0]
    assert plain.finish_reason == "length" or isinstance(json.loads(plain.message.content), dict)
    for extra, allowed in [({"guided_choice": ["red", "green"]}, ("red", "green")),
                           ({"guided_regex": "(yes|no)!"}, ("yes!", "no!"))]:
        assert chat(client, extra_body=extra).choices[0].message.content in allowed
    with pytest.raises(openai.BadRequestError) as refused:
        chat(client, response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "wizard"}}})
    assert "wizard" in refused.value.message or "type" in refused.value.message


def call_of(choice):
    assert choice.message.tool_calls, choice
    call = choice.message.tool_calls[0]
    assert call.type == "function" and call.id
    return call


# Risk: calls that do not parse, that are not offered, or that a stream tells otherwise; a loop that cannot be gone on with.
def test_tools(tool_client):
    ask = [{"role": "user", "content": "Read 5 lines of a.txt."}]
    answer = chat(tool_client, ask, tools=TOOLS, tool_choice="required", max_tokens=120)
    assert answer.choices[0].finish_reason == "tool_calls"
    call = call_of(answer.choices[0])
    assert call.function.name in ("read_file", "now")
    named = {"type": "function", "function": {"name": "read_file"}}
    choice = chat(tool_client, ask, tools=TOOLS, tool_choice=named, parallel_tool_calls=False, max_tokens=120).choices[0]
    arguments = json.loads(call_of(choice).function.arguments)
    assert isinstance(arguments["path"], str) and isinstance(arguments["lines"], int) and len(choice.message.tool_calls) == 1
    assert choice.finish_reason == "stop", "as OpenAI says it of a named choice"
    _, calls, finish, _, _ = gathered(chat(tool_client, ask, tools=TOOLS, tool_choice=named, parallel_tool_calls=False,
                                           max_tokens=120, stream=True))
    assert calls == {0: ("read_file", call_of(choice).function.arguments)} and finish == "stop"
    empty = chat(tool_client, ask, tools=TOOLS[1:], tool_choice="required", parallel_tool_calls=False, max_tokens=60)
    assert json.loads(call_of(empty.choices[0]).function.arguments) == {}


# Risk: the second turn of a conversation with a call computes everything again, or is refused.
def test_tool_loop(tool_client):
    messages = [{"role": "user", "content": "Read 5 lines of a.txt, then tell me what is in it."}]
    named = {"type": "function", "function": {"name": "read_file"}}
    first = chat(tool_client, messages, tools=TOOLS, tool_choice=named, parallel_tool_calls=False, max_tokens=120)
    for _ in range(2):
        message = first.choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        messages.append({"role": "tool", "tool_call_id": message.tool_calls[0].id, "content": "the quick brown fox"})
        first = chat(tool_client, messages, tools=TOOLS, tool_choice=named, parallel_tool_calls=False, max_tokens=120)
        assert first.usage.prompt_tokens_details.cached_tokens > 0
    last = chat(tool_client, messages, tools=TOOLS, tool_choice="none", max_tokens=20).choices[0]
    assert last.message.content and not last.message.tool_calls
    auto = chat(tool_client, messages, tools=TOOLS, max_tokens=60).choices[0]
    assert (auto.finish_reason == "tool_calls") == bool(auto.message.tool_calls)


def post(client, path, body):
    return client.post(path, body=body, cast_to=object)


def token_ids(client, text):
    return post(client, "/tokenize", {"content": text})["tokens"]


# Risk: texts are rated wrongly: columns shifted, a prompt's tokens missing, the order of a list lost.
def test_completions_as_harnesses_use_them(client):
    def rate(prompt, **more):
        return client.completions.create(model="", prompt=prompt, temperature=0, logprobs=1, echo=True, **more)

    text = "The capital of France is Paris"
    ids = token_ids(client, text)
    rated = rate(text, max_tokens=0).choices[0]
    assert rated.text == text and len(rated.logprobs.tokens) == len(ids)
    assert rated.logprobs.token_logprobs[0] is None and rated.logprobs.top_logprobs[0] is None
    assert "".join(rated.logprobs.tokens) == text
    assert rated.logprobs.text_offset == [len("".join(rated.logprobs.tokens[:i])) for i in range(len(ids))]
    for token, logprob, top in list(zip(rated.logprobs.tokens, rated.logprobs.token_logprobs, rated.logprobs.top_logprobs))[1:]:
        assert logprob <= max(top.values()) and top[token] == logprob
    by_ids = rate(ids, max_tokens=1).choices[0]
    assert by_ids.logprobs.token_logprobs[:len(ids)] == pytest.approx(rated.logprobs.token_logprobs, abs=1e-3, nan_ok=True)
    assert len(by_ids.logprobs.tokens) == len(ids) + 1
    several = rate([text, "Paris is the capital of", "x"], max_tokens=1)
    assert [c.index for c in several.choices] == [0, 1, 2]
    assert several.choices[1].text.startswith("Paris is the capital of")
    assert [c.text for c in rate([token_ids(client, "one"), token_ids(client, "two")], max_tokens=0).choices] == ["one", "two"]


# Risk: texts that are gone on with differ between a stream and a whole answer.
def test_completions(client):
    asked = {"model": "", "prompt": ["One, two,", "Red, green,"], "max_tokens": 8, "temperature": 0}
    whole = client.completions.create(**asked)
    texts = {0: "", 1: ""}
    for chunk in client.completions.create(**asked, stream=True):
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert [texts[0], texts[1]] == [c.text for c in whole.choices]
    assert whole.usage.completion_tokens == 16
    two = client.completions.create(**{**asked, "prompt": "Once", "temperature": 1}, n=2, seed=3)
    assert len({c.text for c in two.choices}) == 2


# Risk: an error reaches a client as something it does not understand.
def test_errors(client):
    def refused(kind, **more):
        with pytest.raises(kind) as error:
            chat(client, **more)
        return error.value

    assert refused(openai.NotFoundError, model="gpt-9").code == "model_not_found"
    assert refused(openai.BadRequestError, temperature=999999).param == "temperature"
    assert refused(openai.BadRequestError, top_p=-1).param == "top_p"
    assert refused(openai.BadRequestError, messages=[]).param == "messages"
    image = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
    assert refused(openai.BadRequestError, messages=image).param == "messages[0].content[0]"
    assert refused(openai.BadRequestError, tools=TOOLS).param == "tools", "its template knows none"
    long = refused(openai.BadRequestError, messages=[{"role": "user", "content": "word " * 2000}])
    assert long.code == "context_length_exceeded" and "maximum context length is 1024 tokens" in long.message
    assert refused(openai.BadRequestError, stream=True, max_tokens=0).param == "max_tokens"
    with pytest.raises(openai.BadRequestError) as suffix:
        client.completions.create(model="", prompt="a", suffix="b")
    assert suffix.value.param == "suffix"
    assert chat(client, max_tokens=100000, extra_body={"stop": "."}).choices[0].message.content, "clamped, not refused"


# Risk: a client that leaves is answered to the end, and the next ones wait.
def test_a_client_that_leaves(client):
    stream = chat(client, stream=True, max_tokens=900, extra_body={"ignore_eos": True})
    next(iter(stream))
    stream.close()
    begin = time.monotonic()
    for _ in range(4):
        chat(client, max_tokens=2)
    assert time.monotonic() - begin < 60


# Risk: an agent assumes another context than there is; the small endpoints do not agree with the chat.
def test_small_endpoints(client):
    model = client.models.list().data[0]
    assert client.models.retrieve(model.id).id == model.id
    assert model.max_model_len == model.context_length == model.meta["n_ctx"] == 1024 and model.meta["n_ctx_train"] == 8192
    rendered = post(client, str(client.base_url).replace("/v1/", "/apply-template"), {"messages": ASK})["prompt"]
    assert "Name three colours." in rendered and rendered.endswith("<|im_start|>assistant\n")
    counted = post(client, "/tokenize", {"messages": ASK})
    assert counted["count"] == chat(client, max_tokens=1).usage.prompt_tokens
    assert post(client, "/detokenize", {"tokens": counted["tokens"]})["content"] == rendered
