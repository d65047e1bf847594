#include "text/json_stream.h"

#include <fmt/core.h>

namespace sparkinfer {
namespace {

constexpr size_t kDepthMax = 64;  // as parse_json's

bool is_space(char c) { return c == ' ' || c == '\t' || c == '\n' || c == '\r'; }
bool is_digit(char c) { return c >= '0' && c <= '9'; }

int hex_value(char c) {
    if (is_digit(c)) return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
}

}  // namespace

void append_json_escaped(std::string_view text, std::string& out) {
    for (const char c : text) {
        switch (c) {
            case '"': out += "\\\""; break;
            case '\\': out += "\\\\"; break;
            case '\n': out += "\\n"; break;
            case '\t': out += "\\t"; break;
            case '\r': out += "\\r"; break;
            default:
                if (static_cast<unsigned char>(c) < 0x20)
                    out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
                else
                    out += c;
        }
    }
}

JsonReader::State JsonReader::read(std::string_view text, size_t& at, std::string& out) {
    while (at < text.size()) {
        const Step step = take(text[at], out);
        if (step == Step::broken) return State::broken;
        if (step == Step::taken) at++;
        if (step == Step::done) {
            at++;
            return State::done;
        }
        if (expect_ == Expect::nothing) return State::done;  // a number, which ends before this byte
    }
    return State::reading;
}

std::string JsonReader::closing() const {
    if (!begun_) return "null";
    std::string text = string_open_ ? "\"" : "";
    text.append(open_.rbegin(), open_.rend());
    return text;
}

bool JsonReader::finish(std::string& out) {
    if (lexeme_ == Lexeme::number) in_number('\0', out);
    return expect_ == Expect::nothing;
}

JsonReader::Step JsonReader::take(char c, std::string& out) {
    switch (lexeme_) {
        case Lexeme::none: return begin(c, out);
        case Lexeme::string: return escape_ ? in_escape(c, out) : in_string(c, out);
        case Lexeme::literal: return in_literal(c, out);
        case Lexeme::number: return in_number(c, out);
    }
    return Step::broken;
}

void JsonReader::pass(std::string& out) {
    begun_ = begun_ || !pending_.empty();
    out += pending_;
    pending_.clear();
}

// A byte between lexemes.
JsonReader::Step JsonReader::begin(char c, std::string& out) {
    if (is_space(c)) {
        pending_ += c;
        return Step::taken;
    }
    const bool may_close = expect_ == Expect::value_or_close || expect_ == Expect::key_or_close ||
                           expect_ == Expect::comma_or_close;
    if (may_close && !open_.empty() && c == open_.back()) return close(c, out);
    switch (expect_) {
        case Expect::value:
        case Expect::value_or_close:
            if (c == '{' || c == '[') return open(c, out);
            return begin_scalar(c);
        case Expect::key:
        case Expect::key_or_close:
            if (c != '"') return Step::broken;
            pending_ += c;
            lexeme_ = Lexeme::string;
            key_ = true;
            return Step::taken;
        case Expect::colon:
            if (c != ':') return Step::broken;
            pending_ += c;
            expect_ = Expect::value;
            return Step::taken;
        case Expect::comma_or_close:
            if (c != ',') return Step::broken;
            pending_ += c;
            expect_ = open_.back() == '}' ? Expect::key : Expect::value;
            return Step::taken;
        case Expect::nothing: break;
    }
    return Step::broken;
}

JsonReader::Step JsonReader::open(char c, std::string& out) {
    if (open_.size() == kDepthMax) return Step::broken;
    pending_ += c;
    open_ += c == '{' ? '}' : ']';
    expect_ = c == '{' ? Expect::key_or_close : Expect::value_or_close;
    pass(out);
    return Step::taken;
}

JsonReader::Step JsonReader::close(char c, std::string& out) {
    pending_ += c;
    open_.pop_back();
    return value_ended(out);
}

// Everything read is part of whole values now.
JsonReader::Step JsonReader::value_ended(std::string& out) {
    pass(out);
    lexeme_ = Lexeme::none;
    string_open_ = false;
    expect_ = open_.empty() ? Expect::nothing : Expect::comma_or_close;
    return open_.empty() ? Step::done : Step::taken;
}

JsonReader::Step JsonReader::begin_scalar(char c) {
    if (c == '"') {
        lexeme_ = Lexeme::string;
        key_ = false;
    } else if (c == '-' || is_digit(c)) {
        lexeme_ = Lexeme::number;
        number_ = c == '0' ? 'z' : c == '-' ? '-' : 'i';
    } else if (c == 't' || c == 'f' || c == 'n') {
        lexeme_ = Lexeme::literal;
        literal_ = c == 't' ? "rue" : c == 'f' ? "alse" : "ull";
    } else {
        return Step::broken;
    }
    pending_ += c;
    return Step::taken;
}

JsonReader::Step JsonReader::in_string(char c, std::string& out) {
    if (c == '"') {
        pending_ += c;
        if (!key_) return value_ended(out);
        lexeme_ = Lexeme::none;
        expect_ = Expect::colon;
        return Step::taken;
    }
    if (c == '\\') {
        pending_ += c;
        escape_ = 1;
        return Step::taken;
    }
    append_json_escaped(std::string_view(&c, 1), pending_);
    if (!key_) {
        string_open_ = true;
        pass(out);
    }
    return Step::taken;
}

// After a backslash. A first half of a surrogate pair waits for the second.
JsonReader::Step JsonReader::in_escape(char c, std::string& out) {
    if (escape_ == 1 && c == 'u') {
        escape_ = 2;
        code_unit_ = 0;
    } else if (escape_ == 1) {
        if (std::string_view("\"\\/bfnrt").find(c) == std::string_view::npos) return Step::broken;
        escape_ = 0;
    } else {
        const int digit = hex_value(c);
        if (digit < 0) return Step::broken;
        code_unit_ = code_unit_ * 16 + static_cast<uint32_t>(digit);
        escape_ = escape_ == 5 ? 0 : escape_ + 1;
        if (escape_ == 0 && code_unit_ >= 0xD800 && code_unit_ < 0xDC00) {
            pending_ += c;
            return Step::taken;
        }
    }
    pending_ += c;
    if (escape_ == 0 && !key_) {
        string_open_ = true;
        pass(out);
    }
    return Step::taken;
}

JsonReader::Step JsonReader::in_literal(char c, std::string& out) {
    if (c != literal_.front()) return Step::broken;
    pending_ += c;
    literal_.remove_prefix(1);
    return literal_.empty() ? value_ended(out) : Step::taken;
}

// number_: '-' sign, 'z' zero, 'i' integer digits, '.' point, 'f' fraction, 'e' exponent letter, 's' its
// sign, 'x' its digits. The number may end after z, i, f and x.
JsonReader::Step JsonReader::in_number(char c, std::string& out) {
    char next = 0;
    if (is_digit(c)) {
        if (number_ == '-') next = c == '0' ? 'z' : 'i';
        if (number_ == 'i') next = 'i';
        if (number_ == '.' || number_ == 'f') next = 'f';
        if (number_ == 'e' || number_ == 's' || number_ == 'x') next = 'x';
    } else if (c == '.') {
        if (number_ == 'z' || number_ == 'i') next = '.';
    } else if (c == 'e' || c == 'E') {
        if (number_ == 'z' || number_ == 'i' || number_ == 'f') next = 'e';
    } else if ((c == '+' || c == '-') && number_ == 'e') {
        next = 's';
    }
    if (next) {
        number_ = next;
        pending_ += c;
        return Step::taken;
    }
    const bool whole = number_ == 'z' || number_ == 'i' || number_ == 'f' || number_ == 'x';
    if (!whole || is_digit(c)) return Step::broken;
    value_ended(out);
    return Step::again;
}

}  // namespace sparkinfer
