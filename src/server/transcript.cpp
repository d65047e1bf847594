#include "server/transcript.h"

#include <algorithm>

namespace sparkinfer {
namespace {

constexpr std::string_view kChat = R"([{"role":"user","content":"0000"}])";
constexpr std::string_view kTurns =
    R"([{"role":"user","content":"0000"},{"role":"assistant","content":"1111"},{"role":"user","content":"2222"}])";

size_t common_prefix(std::string_view a, std::string_view b) {
    size_t n = 0;
    while (n < a.size() && n < b.size() && a[n] == b[n]) ++n;
    return n;
}

bool touches(const std::vector<ByteRange>& ranges, size_t begin, size_t end) {
    const auto found = std::upper_bound(ranges.begin(), ranges.end(), begin,
                                        [](size_t at, const ByteRange& r) { return at < r.end; });
    return found != ranges.end() && found->begin < end;
}

// The next place of a mark that the template itself printed.
size_t find_mark(const Rendered& rendered, const std::string& mark, size_t from) {
    for (size_t at = rendered.text.find(mark, from); at != std::string::npos;
         at = rendered.text.find(mark, at + 1))
        if (!touches(rendered.guarded, at, at + mark.size())) return at;
    return std::string::npos;
}

// What both of two texts of a conversation agree on.
bool same_text(std::string_view a, std::string_view b) {
    const auto trim = [](std::string_view s) {
        const auto space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
        while (!s.empty() && space(s.front())) s.remove_prefix(1);
        while (!s.empty() && space(s.back())) s.remove_suffix(1);
        return s;
    };
    return trim(a) == trim(b);
}

std::string content_key(std::string_view content, const std::vector<ToolCall>& calls) {
    std::string key = "says:";
    while (!content.empty() && (content.back() == '\n' || content.back() == ' ')) content.remove_suffix(1);
    while (!content.empty() && (content.front() == '\n' || content.front() == ' ')) content.remove_prefix(1);
    key += content;
    for (const ToolCall& call : calls) key += fmt::format("\x01{}", call.name);
    return key;
}

int64_t entry_bytes(const SampledTurn& turn, const std::vector<std::string>& keys) {
    size_t bytes = 256 + turn.text.size() + turn.tokens.size() * sizeof(TokenId) + turn.reasoning.size() +
                   turn.content.size();
    for (const ToolCall& call : turn.calls) bytes += call.arguments.size() + call.name.size() + 64;
    for (const std::string& key : keys) bytes += key.size() + 64;
    return int64_t(bytes);
}

}  // namespace

bool repeats(const ChatMessage& message, const SampledTurn& turn) {
    if (!same_text(message.content, turn.content) || message.calls.size() != turn.calls.size()) return false;
    if (message.reasoning && !same_text(*message.reasoning, turn.reasoning)) return false;
    for (size_t i = 0; i < turn.calls.size(); ++i)
        if (message.calls[i].name != turn.calls[i].name ||
            !same_json(message.calls[i].arguments, turn.calls[i].arguments))
            return false;
    return true;
}

TurnMarks find_turn_marks(const ChatTemplate& chat_template) {
    const auto open = chat_template.render(kChat);
    RenderOptions closed_options;
    closed_options.add_generation_prompt = false;
    const auto closed = chat_template.render(kChat, closed_options);
    const auto turns = chat_template.render(kTurns, closed_options);
    if (!open.ok() || !closed.ok() || !turns.ok()) return {};
    const std::string &whole = open.value().text, &prefix = closed.value().text, &chat = turns.value().text;
    if (!whole.starts_with(prefix) || !chat.starts_with(prefix)) return {};
    const size_t answer = chat.find("1111", prefix.size()), next = chat.find("2222", prefix.size());
    if (answer == std::string::npos || next == std::string::npos || next < answer) return {};
    TurnMarks marks;
    const std::string_view generation = std::string_view(whole).substr(prefix.size());
    const std::string_view history = std::string_view(chat).substr(prefix.size(), answer - prefix.size());
    marks.header = generation.substr(0, common_prefix(generation, history));
    // Up to the line's end: what follows belongs to the next turn.
    const std::string_view behind = std::string_view(chat).substr(answer + 4, next - answer - 4);
    marks.end = behind.substr(0, behind.find('\n'));
    return marks;
}

std::vector<TurnRange> find_turns(const Rendered& rendered, const TurnMarks& marks) {
    std::vector<TurnRange> turns;
    if (!marks.known()) return turns;
    size_t from = 0;
    while (true) {
        const size_t header = find_mark(rendered, marks.header, from);
        if (header == std::string::npos) return turns;
        const size_t begin = header + marks.header.size();
        const size_t end = find_mark(rendered, marks.end, begin);
        turns.push_back({begin, std::min(end, rendered.text.size()), end == std::string::npos});
        if (end == std::string::npos) return turns;
        from = end;
    }
}

void SampledTurns::remember(const std::vector<std::string>& ids, SampledTurn turn, const std::string& scope) {
    std::vector<std::string> keys;
    for (const std::string& id : ids)
        if (!id.empty()) keys.push_back("id:" + id);
    keys.push_back(content_key(turn.content, turn.calls));
    for (std::string& key : keys) key = scope + '\x02' + key;
    const std::lock_guard lock(mutex_);
    const int64_t number = next_++;
    for (const std::string& key : keys) by_key_[key] = number;
    bytes_ += size_t(entry_bytes(turn, keys));
    by_age_.emplace(number, std::pair(std::make_shared<const SampledTurn>(std::move(turn)), std::move(keys)));
    while (bytes_ > max_bytes_ && by_age_.size() > 1) forget_oldest();
}

void SampledTurns::forget_oldest() {
    const auto oldest = by_age_.begin();
    const auto& [turn, keys] = oldest->second;
    for (const std::string& key : keys)
        if (const auto found = by_key_.find(key); found != by_key_.end() && found->second == oldest->first)
            by_key_.erase(found);
    bytes_ -= size_t(entry_bytes(*turn, keys));
    by_age_.erase(oldest);
}

std::shared_ptr<const SampledTurn> SampledTurns::find(const ChatMessage& message,
                                                      const std::string& scope) const {
    std::vector<std::string> keys;
    if (!message.id.empty()) keys.push_back("id:" + message.id);
    for (const ToolCall& call : message.calls)
        if (!call.id.empty()) keys.push_back("id:" + call.id);
    keys.push_back(content_key(message.content, message.calls));
    for (std::string& key : keys) key = scope + '\x02' + key;
    const std::lock_guard lock(mutex_);
    for (const std::string& key : keys) {
        const auto found = by_key_.find(key);
        if (found == by_key_.end()) continue;
        const Entry& turn = by_age_.at(found->second).first;
        if (repeats(message, *turn)) return turn;
    }
    return nullptr;
}

size_t SampledTurns::bytes() const {
    const std::lock_guard lock(mutex_);
    return bytes_;
}

bool same_json(std::string_view a, std::string_view b) {
    if (a == b) return true;
    const auto left = parse_json(a, "left"), right = parse_json(b, "right");
    return left.ok() && right.ok() && left.value() == right.value();
}

}  // namespace sparkinfer
