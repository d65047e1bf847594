#include <algorithm>

#include "server/anthropic.h"
#include "server/errors.h"
#include "server/sse.h"

namespace sparkinfer {

const char kMessagesPing[] = "event: ping\ndata: {\"type\":\"ping\"}\n\n";

namespace {

// Cached tokens are no input tokens in this protocol: the prompt is the sum of the three.
JsonObject messages_usage(const Usage& usage) {
    return {{"input_tokens", usage.prompt_tokens - usage.cached_tokens},
            {"cache_creation_input_tokens", 0},
            {"cache_read_input_tokens", usage.cached_tokens},
            {"output_tokens", usage.completion_tokens},
            {"output_tokens_details", JsonObject{{"thinking_tokens", usage.reasoning_tokens}}}};
}

// Nobody hears of tools that were not called, whatever the event says.
const char* stop_reason(const AnswerEvent& finished, bool called) {
    if (finished.finish == AnswerFinish::length) return "max_tokens";
    if (finished.finish == AnswerFinish::tool_calls && called) return "tool_use";
    return finished.stop.empty() ? "end_turn" : "stop_sequence";
}

Json text_or_null(const std::string& text) { return text.empty() ? Json(nullptr) : Json(text); }

}  // namespace

std::string MessagesAnswer::add(const AnswerEvent& event) {
    using Kind = AnswerEvent::Kind;
    switch (event.kind) {
        case Kind::started:
            usage_ = event.usage;
            return sse_event("message_start", {{"type", "message_start"}, {"message", message()}}) +
                   kMessagesPing;
        case Kind::reasoning: return grow("thinking", event.text);
        case Kind::content: return grow("text", event.text);
        case Kind::call_started: return open({"tool_use", event.id, event.text, ""});
        case Kind::call_arguments: return grow("tool_use", event.text);
        case Kind::call_finished: return close();
        case Kind::finished: return finish(event);
        case Kind::failed: return sse_event("error", error_json("/v1/messages", event.error).get_object());
    }
    return {};
}

std::string MessagesAnswer::open(Block block) {
    std::string out = close();
    blocks_.push_back(std::move(block));
    open_ = true;
    JsonObject empty = block_json(blocks_.back());
    if (blocks_.back().type == "thinking") empty["signature"] = "";
    return out + sse_event("content_block_start", {{"type", "content_block_start"},
                                                   {"index", blocks_.size() - 1},
                                                   {"content_block", std::move(empty)}});
}

std::string MessagesAnswer::grow(const char* type, const std::string& text) {
    if (text.empty()) return {};
    std::string out;
    if (!open_ || blocks_.back().type != type) out = open({type, "", "", ""});
    Block& block = blocks_.back();
    JsonObject delta;
    if (block.type == "thinking") {
        if (omit_thinking_) return out;
        delta = {{"type", "thinking_delta"}, {"thinking", text}};
    } else if (block.type == "text") {
        delta = {{"type", "text_delta"}, {"text", text}};
    } else {
        delta = {{"type", "input_json_delta"}, {"partial_json", text}};
    }
    block.text += text;
    return out + sse_event("content_block_delta", {{"type", "content_block_delta"},
                                                   {"index", blocks_.size() - 1},
                                                   {"delta", std::move(delta)}});
}

std::string MessagesAnswer::close() {
    if (!open_) return {};
    open_ = false;
    std::string out;
    const size_t index = blocks_.size() - 1;
    if (blocks_.back().type == "thinking")
        out = sse_event("content_block_delta",
                        {{"type", "content_block_delta"},
                         {"index", index},
                         {"delta", JsonObject{{"type", "signature_delta"}, {"signature", id_}}}});
    return out + sse_event("content_block_stop", {{"type", "content_block_stop"}, {"index", index}});
}

std::string MessagesAnswer::finish(const AnswerEvent& event) {
    std::string out = close();
    usage_ = event.usage;
    const bool called = std::any_of(blocks_.begin(), blocks_.end(),
                                    [](const Block& block) { return block.type == "tool_use"; });
    stop_reason_ = stop_reason(event, called);
    stop_sequence_ = event.finish == AnswerFinish::stop ? event.stop : "";
    out += sse_event("message_delta", {{"type", "message_delta"},
                                       {"delta", JsonObject{{"stop_reason", stop_reason_},
                                                            {"stop_sequence", text_or_null(stop_sequence_)}}},
                                       {"usage", messages_usage(usage_)}});
    return out + sse_event("message_stop", {{"type", "message_stop"}});
}

JsonObject MessagesAnswer::block_json(const Block& block) const {
    if (block.type == "text") return {{"type", "text"}, {"text", block.text}};
    if (block.type == "thinking") return {{"type", "thinking"}, {"thinking", block.text}, {"signature", id_}};
    // What was cut off in the middle is no input.
    const auto input = parse_json(block.text, "input");
    const bool whole = input.ok() && input.value().is_object();
    return {{"type", "tool_use"},
            {"id", block.id},
            {"name", block.name},
            {"input", whole ? input.value() : Json(JsonObject{})}};
}

JsonObject MessagesAnswer::message() const {
    JsonArray content;
    for (const Block& block : blocks_) content.push_back(block_json(block));
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_},
            {"content", std::move(content)},
            {"stop_reason", stop_reason_ ? Json(stop_reason_) : Json(nullptr)},
            {"stop_sequence", text_or_null(stop_sequence_)},
            {"usage", messages_usage(usage_)}};
}

}  // namespace sparkinfer
