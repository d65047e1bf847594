#include "text/decoder.h"

#include <algorithm>

namespace sparkinfer {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

enum class Form { whole, incomplete, ill_formed };
struct Sequence {
    Form form;
    size_t length;  // bytes of the character, or of the maximal part that is well formed so far (at least 1)
};

// Classifies what `s` (not empty) begins with, after table 3-7 of the Unicode standard.
Sequence classify(std::string_view s) {
    const auto byte = [&](size_t i) { return static_cast<unsigned char>(s[i]); };
    const unsigned char lead = byte(0);
    if (lead < 0x80) return {Form::whole, 1};
    if (lead < 0xC2 || lead > 0xF4) return {Form::ill_formed, 1};
    const size_t length = lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : 4;
    // The second byte's range is narrower after four lead bytes: no overlong forms, surrogates or values past
    // 10FFFF.
    unsigned char low = 0x80;
    unsigned char high = 0xBF;
    if (lead == 0xE0) low = 0xA0;
    if (lead == 0xED) high = 0x9F;
    if (lead == 0xF0) low = 0x90;
    if (lead == 0xF4) high = 0x8F;
    for (size_t i = 1; i < length; ++i) {
        if (i == s.size()) return {Form::incomplete, i};
        if (byte(i) < low || byte(i) > high) return {Form::ill_formed, i};
        low = 0x80;
        high = 0xBF;
    }
    return {Form::whole, length};
}

}  // namespace

void Utf8Buffer::push(std::string_view bytes, std::string& out) {
    held_.append(bytes);
    std::string_view rest = held_;
    while (!rest.empty()) {
        const auto [form, length] = classify(rest);
        if (form == Form::incomplete) break;
        out.append(form == Form::whole ? rest.substr(0, length) : kReplacement);
        rest.remove_prefix(length);
    }
    held_.erase(0, held_.size() - rest.size());
}

void Utf8Buffer::finish(std::string& out) {
    if (!held_.empty()) out.append(kReplacement);
    held_.clear();
}

size_t valid_utf8_prefix(std::string_view text) {
    size_t at = 0;
    while (at < text.size()) {
        const auto [form, length] = classify(text.substr(at));
        if (form != Form::whole) break;
        at += length;
    }
    return at;
}

std::string Decoder::push(TokenId id) {
    std::string out;
    if (!keep_control_ && tokenizer_->kind(id) == TokenKind::control) return out;
    buffer_.push(tokenizer_->piece(id), out);
    return out;
}

std::string Decoder::finish() {
    std::string out;
    buffer_.finish(out);
    return out;
}

StopMatcher::StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {
    std::erase(stops_, std::string());
}

// Where in `text` the longest suffix begins that is a proper prefix of a stop string; its size if there is
// none.
size_t StopMatcher::held_from(std::string_view text) const {
    size_t longest = 0;
    for (const std::string& stop : stops_) {
        for (size_t n = std::min(stop.size() - 1, text.size()); n > longest; --n) {
            if (text.ends_with(std::string_view(stop).substr(0, n))) longest = n;
        }
    }
    return text.size() - longest;
}

std::string StopMatcher::push(std::string_view text) {
    if (matched()) return {};
    held_.append(text);
    size_t at = std::string::npos;
    for (const std::string& stop : stops_) {
        const size_t found = held_.find(stop);
        if (found == std::string::npos) continue;
        if (at == std::string::npos || found < at || (found == at && stop.size() > match_.size())) {
            at = found;
            match_ = stop;
        }
    }
    if (at != std::string::npos) return std::exchange(held_, {}).substr(0, at);
    const size_t keep = held_from(held_);
    std::string out = held_.substr(0, keep);
    held_.erase(0, keep);
    return out;
}

std::string StopMatcher::finish() {
    if (matched()) return {};
    return std::exchange(held_, {});
}

}  // namespace sparkinfer
