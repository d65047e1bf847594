"""What is read off recorded exchanges: shapes of requests, usage of answers, retries."""

import json

# Values that are the protocol's words, kept in shapes; of all else the type alone.
KEPT = {"type", "role"}
# Objects whose keys are an agent's own: a schema's properties, arguments of calls.
OPAQUE = {"properties", "$defs", "input", "client_metadata", "patternProperties"}


def shape(value, key=""):
    """Keys and types. A list becomes the distinct shapes of its items, objects of one shape joined."""
    if isinstance(value, dict):
        if key in OPAQUE:
            return "object"
        return {name: shape(item, name) for name, item in sorted(value.items())}
    if isinstance(value, list):
        shapes = []
        for item in value:
            found = shape(item)
            if found not in shapes:
                shapes.append(found)
        return sorted(shapes, key=json.dumps)
    if isinstance(value, str):
        return f"={value}" if key in KEPT else "string"
    return {bool: "boolean", int: "number", float: "number", type(None): "null"}[type(value)]


def tool_shapes(tools):
    """Of tools their kinds and keys only: parameters are each agent's own."""
    kinds = []
    for tool in tools:
        inner = tool.get("function", tool)
        schema = inner.get("parameters") or inner.get("input_schema") or {}
        kind = {"type": tool.get("type", ""), "keys": sorted(tool), "inner": sorted(inner), "schema": sorted(schema)}
        if "tools" in tool:
            kind["tools"] = tool_shapes(tool["tools"])
        if kind not in kinds:
            kinds.append(kind)
    return sorted(kinds, key=json.dumps)


def request_shape(exchange):
    body = dict(exchange.json())
    tools = body.pop("tools", None)
    found = {"method": exchange.method, "path": exchange.path, "headers": sorted(exchange.headers),
             "body": shape(body)}
    if tools is not None:
        found["tools"] = tool_shapes(tools)
    return found


def events(exchange):
    """The JSON payloads of a server-sent event stream."""
    found = []
    for block in exchange.answer.decode().replace("\r\n", "\n").split("\n\n"):
        data = "\n".join(line[5:].lstrip(" ") for line in block.split("\n") if line.startswith("data:"))
        if data and data != "[DONE]":
            found.append(json.loads(data))
    return found


def usage(exchange):
    """(prompt tokens, cached tokens) of an answer, from whichever protocol; None where it has none."""
    if "event-stream" in exchange.answer_headers.get("content-type", ""):
        payloads = events(exchange)
    else:
        payloads = [json.loads(exchange.answer)]
    found = None
    for payload in payloads:
        for place in (payload, payload.get("message") or {}, payload.get("response") or {}):
            found = usage_of(place.get("usage")) or found
    return found


def usage_of(usage):
    if not usage:
        return None
    if "prompt_tokens" in usage:
        return usage["prompt_tokens"], (usage.get("prompt_tokens_details") or {}).get("cached_tokens", 0)
    if "input_tokens_details" in usage:
        return usage["input_tokens"], usage["input_tokens_details"].get("cached_tokens", 0)
    if "input_tokens" in usage:  # messages: cached ones are counted apart
        cached = usage.get("cache_read_input_tokens") or 0
        return usage["input_tokens"] + cached + (usage.get("cache_creation_input_tokens") or 0), cached
    return None


def retries(exchange):
    return int(exchange.headers.get("x-stainless-retry-count", "0"))
