"""Differential oracles: one question asked in several ways must have one answer.

Greedy and on the CPU, where the engine's output is bit for bit the same whatever a request's neighbours, its cached part
and the way it is sent.
"""

import asyncio
import json

import client

QUESTIONS = ["Tell me about the sea.", "One two three four five six", "Write a line of text,\nthen another one.",
             "why " * 60, "A list: apples, pears and plums. What is missing?"]


def chat(question, **more):
    return {"model": "x", "messages": [{"role": "system", "content": "You answer."},
                                       {"role": "user", "content": question}],
            "temperature": 0, "max_tokens": 24, **more}


async def ask(port, path, body):
    answer = await client.request(port, "POST", path, body)
    assert answer.status == 200, f"POST {path}: {answer.status} {answer.body[:400]!r}"
    return answer.json()


async def chat_text(port, question, **more):
    found = await ask(port, "/v1/chat/completions", chat(question, **more))
    message = found["choices"][0]["message"]
    return (message.get("reasoning_content") or "") + (message.get("content") or ""), found


async def stream_equals_whole(port):
    """Deltas joined are the whole answer, with the same usage and finish reason."""
    for question in QUESTIONS:
        whole, found = await chat_text(port, question)
        body = chat(question, stream=True, stream_options={"include_usage": True})
        answer, events = await client.stream(port, "/v1/chat/completions", body)
        assert answer.status == 200, answer.status
        assert events[-1][1] == "[DONE]", events[-1]
        parts = [json.loads(payload) for _, payload in events[:-1]]
        deltas = [c["delta"] for p in parts for c in p["choices"]]
        joined = "".join((d.get("reasoning_content") or "") + (d.get("content") or "") for d in deltas)
        assert joined == whole, f"{question!r}: stream {joined!r}, whole {whole!r}"
        reasons = [c["finish_reason"] for p in parts for c in p["choices"] if c.get("finish_reason")]
        assert reasons == [found["choices"][0]["finish_reason"]], reasons
        usage = parts[-1]["usage"]
        for key in ("prompt_tokens", "completion_tokens", "total_tokens"):
            assert usage[key] == found["usage"][key], f"{key}: stream {usage}, whole {found['usage']}"
    return {"questions": len(QUESTIONS)}


async def cached_equals_fresh(port):
    """An answer with most of its prompt cached is the one without."""
    hits = 0
    for question in QUESTIONS:
        for turns in (1, 2, 3):
            messages = chat(question)["messages"] + [
                {"role": role, "content": f"{role} {i} of {question[:20]}"} for i in range(turns - 1)
                for role in ("assistant", "user")]
            texts = []
            for attempt in range(3):
                text, found = await chat_text(port, question, messages=messages)
                texts.append(text)
                cached = (found["usage"].get("prompt_tokens_details") or {}).get("cached_tokens", 0)
                hits += attempt > 0 and cached > 0
            assert len(set(texts)) == 1, f"{question!r}, {turns} turns: {texts}"
    assert hits > 0, "nothing was ever cached, so nothing was compared"
    return {"compared": 3 * len(QUESTIONS), "hits": hits}


async def alone_equals_crowd(port, rounds=3):
    """Answers among neighbours that come and go are those of an idle server."""
    alone = [(await chat_text(port, q, seed=i, temperature=0.9))[0] for i, q in enumerate(QUESTIONS)]
    for _ in range(rounds):
        crowd = await asyncio.gather(*(chat_text(port, q, seed=i, temperature=0.9)
                                       for i, q in enumerate(QUESTIONS) for _ in range(3)))
        for i, (text, _) in enumerate(crowd):
            assert text == alone[i // 3], f"{QUESTIONS[i // 3]!r}: alone {alone[i // 3]!r}, in a crowd {text!r}"
    return {"answers": rounds * 3 * len(QUESTIONS)}


def response_text(found):
    return "".join(part.get("text", "") for item in found["output"] for part in item.get("content") or [])


async def protocols_agree(port):
    """chat completions, messages and responses answer the same question with the same text."""
    for question in QUESTIONS:
        text, _ = await chat_text(port, question)
        messages = await ask(port, "/v1/messages", {
            "model": "x", "system": "You answer.", "messages": [{"role": "user", "content": question}],
            "temperature": 0, "max_tokens": 24})
        said = "".join(block.get("thinking", "") + block.get("text", "") for block in messages["content"])
        assert said == text, f"{question!r}: chat {text!r}, messages {said!r}"
        responses = await ask(port, "/v1/responses", {
            "model": "x", "instructions": "You answer.", "input": question, "temperature": 0, "max_output_tokens": 24,
            "store": False})
        assert response_text(responses) == text, f"{question!r}: chat {text!r}, responses {response_text(responses)!r}"
    return {"questions": len(QUESTIONS)}


ORACLES = [stream_equals_whole, cached_equals_fresh, alone_equals_crowd, protocols_agree]
