// Calls of the form
//     <tool_call>\n{"name": "NAME", "arguments": {…}}\n</tool_call>
// Keys come in any order. Arguments are passed on as they are written; those that come before the name wait
// for it. A string of JSON instead of the object is opened, other keys are skipped.
#include "core/json.h"
#include "text/call_reader.h"
#include "text/json_stream.h"

namespace sparkinfer {
namespace {

class HermesReader final : public CallReader {
  public:
    State read(std::string_view text, bool end, std::vector<AnswerPart>& out) override {
        text_ = text;
        end_ = end;
        for (;;) {
            switch (step(out)) {
                case Next::go_on: break;
                case Next::wait:
                    if (!end_) return State::reading;
                    return give_up(text_.size(), out);
                case Next::broken: return give_up(at_, out);
                case Next::done: return State::done;
            }
        }
    }

  private:
    enum class Where { open, key_begin, key, colon, value_begin, value, comma_or_close, tail };
    enum class Value { name, arguments_object, arguments_string, other };
    enum class Next { go_on, wait, broken, done };

    Next step(std::vector<AnswerPart>& out);
    Next punctuation(std::vector<AnswerPart>& out);
    Next key();
    Next value_begin(std::vector<AnswerPart>& out);
    Next value(std::vector<AnswerPart>& out);
    Next value_ended(std::vector<AnswerPart>& out);
    Next tail();
    void announce(std::vector<AnswerPart>& out);
    void finish_call(bool whole, std::vector<AnswerPart>& out);
    State give_up(size_t at, std::vector<AnswerPart>& out);
    // The byte at at_ after white space; '\0' when there is none yet.
    char next_byte();

    std::string_view text_;  // of this read
    bool end_ = false;
    Where where_ = Where::open;
    Value value_ = Value::other;
    JsonReader json_;     // of the key or value under way
    std::string lexeme_;  // what it passed on, where that does not go out at once
    std::string name_, arguments_;
    bool has_arguments_ = false;
    bool announced_ = false, finished_ = false;
};

// A string's JSON as its text; nothing when it is no proper string.
std::optional<std::string> string_of(std::string_view json) {
    const Result<Json> parsed = parse_json(json, "the call");
    if (!parsed.ok() || !parsed.value().is_string()) return std::nullopt;
    const auto& text = parsed.value().as_string();
    return std::string(text.data(), text.size());
}

char HermesReader::next_byte() {
    TextScan scan{text_, at_};
    scan.skip_space();
    at_ = scan.at;
    return scan.ended() ? '\0' : text_[at_];
}

HermesReader::Next HermesReader::step(std::vector<AnswerPart>& out) {
    switch (where_) {
        case Where::open:
        case Where::key_begin:
        case Where::colon:
        case Where::comma_or_close: return punctuation(out);
        case Where::key: return key();
        case Where::value_begin: return value_begin(out);
        case Where::value: return value(out);
        case Where::tail: return tail();
    }
    return Next::broken;
}

HermesReader::Next HermesReader::punctuation(std::vector<AnswerPart>& out) {
    const char c = next_byte();
    if (c == '\0') return at_ < text_.size() ? Next::broken : Next::wait;
    if (where_ == Where::open && c == '{') {
        where_ = Where::key_begin;
    } else if (where_ == Where::key_begin && c == '"') {
        json_ = {};
        lexeme_.clear();
        where_ = Where::key;
        return Next::go_on;
    } else if (where_ == Where::colon && c == ':') {
        where_ = Where::value_begin;
    } else if (where_ == Where::comma_or_close && c == ',') {
        where_ = Where::key_begin;
    } else if (where_ == Where::comma_or_close && c == '}') {
        if (name_.empty()) return Next::broken;
        if (arguments_.empty()) arguments_ = "{}";
        if (!announced_) announce(out);
        if (!finished_) finish_call(true, out);
        where_ = Where::tail;
    } else {
        return Next::broken;
    }
    at_++;
    return Next::go_on;
}

HermesReader::Next HermesReader::key() {
    const JsonReader::State state = json_.read(text_, at_, lexeme_);
    if (state == JsonReader::State::reading) return Next::wait;
    const std::optional<std::string> key =
        state == JsonReader::State::done ? string_of(lexeme_) : std::nullopt;
    if (!key) return Next::broken;
    value_ = Value::other;
    if (*key == "name") {
        if (!name_.empty()) return Next::broken;
        value_ = Value::name;
    } else if (*key == "arguments" || *key == "parameters") {
        if (has_arguments_) return Next::broken;
        value_ = Value::arguments_object;
    }
    where_ = Where::colon;
    return Next::go_on;
}

HermesReader::Next HermesReader::value_begin(std::vector<AnswerPart>& out) {
    const char c = next_byte();
    if (at_ == text_.size()) return Next::wait;
    json_ = {};
    lexeme_.clear();
    where_ = Where::value;
    if (value_ == Value::name && c != '"') return Next::broken;
    if (value_ != Value::arguments_object) return Next::go_on;
    has_arguments_ = true;
    if (c == '"') {
        value_ = Value::arguments_string;
    } else if (c == 'n') {
        value_ = Value::other;  // null: no arguments
    } else if (c != '{') {
        return Next::broken;
    } else if (!name_.empty()) {
        announce(out);
    }
    return Next::go_on;
}

HermesReader::Next HermesReader::value(std::vector<AnswerPart>& out) {
    std::string passed;
    const JsonReader::State state = json_.read(text_, at_, passed);
    if (value_ == Value::arguments_object && announced_)
        add_arguments(passed, out);
    else
        lexeme_ += passed;
    if (state == JsonReader::State::reading) return Next::wait;
    if (state == JsonReader::State::broken) return Next::broken;
    return value_ended(out);
}

HermesReader::Next HermesReader::value_ended(std::vector<AnswerPart>& out) {
    where_ = Where::comma_or_close;
    if (value_ == Value::name) {
        std::optional<std::string> name = string_of(lexeme_);
        if (!name || name->empty() || name->size() > kCallNameMax) return Next::broken;
        name_ = std::move(*name);
        if (!arguments_.empty()) announce(out);
    } else if (value_ == Value::arguments_object && !announced_) {
        arguments_ = lexeme_;
    } else if (value_ == Value::arguments_string) {
        std::optional<std::string> text = string_of(lexeme_);
        if (!text) return Next::broken;
        if (text->find_first_not_of(" \t\r\n") == text->npos) text = "{}";
        const Result<Json> parsed = parse_json(*text, "the arguments");
        if (!parsed.ok() || !parsed.value().is_object()) return Next::broken;
        arguments_ = std::move(*text);
        if (!name_.empty()) announce(out);
    }
    if (announced_ && !finished_) finish_call(true, out);
    return Next::go_on;
}

void HermesReader::announce(std::vector<AnswerPart>& out) {
    out.push_back({.kind = AnswerPart::Kind::call_started, .text = name_});
    announced_ = true;
    add_arguments(arguments_, out);
}

void HermesReader::finish_call(bool whole, std::vector<AnswerPart>& out) {
    finished_ = true;
    out.push_back({.kind = AnswerPart::Kind::call_finished, .whole = whole});
}

// The text ends, or cannot go on as a call, at `at`.
CallReader::State HermesReader::give_up(size_t at, std::vector<AnswerPart>& out) {
    if (!announced_) return State::no_call;
    if (!finished_) {
        add_arguments(json_.closing(), out);
        finish_call(false, out);
    }
    at_ = at;
    return State::done;
}

HermesReader::Next HermesReader::tail() {
    TextScan scan{text_, at_};
    scan.skip_space();
    const TextScan::Match match = scan.literal(kCallClose);
    if (match == TextScan::Match::partial) return Next::wait;
    if (match == TextScan::Match::yes) at_ = scan.at;
    return Next::done;
}

}  // namespace

std::unique_ptr<CallReader> make_hermes_reader() { return std::make_unique<HermesReader>(); }

}  // namespace sparkinfer
