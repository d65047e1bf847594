// Calls of the form
//     <tool_call>\n<function=NAME>\n<parameter=KEY>\nVALUE\n</parameter>\n…</function>\n</tool_call>
// VALUE is free text. It ends at a </parameter> on a line of its own that the next <parameter= follows, or
// </function> and </tool_call>; so text that holds these tags in any other order survives. A value that
// begins on the tag's own line ends on its closing tag's line likewise.
#include <algorithm>

#include "text/call_reader.h"
#include "text/json_stream.h"
#include "text/parameter_types.h"

namespace sparkinfer {
namespace {

constexpr std::string_view kFunction = "<function=", kFunctionClose = "</function>";
constexpr std::string_view kParameter = "<parameter=", kParameterClose = "</parameter>";
using Match = TextScan::Match;

class QwenXmlReader final : public CallReader {
  public:
    explicit QwenXmlReader(std::span<const ToolSpec> tools) : tools_(tools) {}

    State read(std::string_view text, bool end, std::vector<AnswerPart>& out) override {
        text_ = text;
        end_ = end;
        for (;;) {
            switch (step(out)) {
                case Next::go_on: break;
                case Next::wait: return State::reading;
                case Next::done: return State::done;
                case Next::no_call: return State::no_call;
            }
        }
    }

  private:
    enum class Where { name, parameters, value, tail };
    enum class Next { go_on, wait, done, no_call };

    Next step(std::vector<AnswerPart>& out) {
        switch (where_) {
            case Where::name: return name(out);
            case Where::parameters: return parameters(out);
            case Where::value: return value(out);
            case Where::tail: return tail();
        }
        return Next::done;
    }
    Next name(std::vector<AnswerPart>& out);
    Next parameters(std::vector<AnswerPart>& out);
    Next value(std::vector<AnswerPart>& out);
    Next tail();
    Next no_call_here() const { return calls_ > 0 ? Next::done : Next::no_call; }
    Match attribute(TextScan& scan, std::string_view tag, std::string_view& name) const;
    Match parameter_end(size_t from, size_t& next) const;
    void begin_value(std::string_view key, size_t at);
    void pass_value(size_t to, std::vector<AnswerPart>& out);
    void end_value(size_t to, std::vector<AnswerPart>& out);
    void cut_value(size_t to, std::vector<AnswerPart>& out);
    void finish_call(bool whole, std::vector<AnswerPart>& out);
    std::string key_json() const;

    std::span<const ToolSpec> tools_;
    std::string_view text_;  // of this read
    bool end_ = false;
    Where where_ = Where::name;
    int calls_ = 0;
    const ToolSpec* tool_ = nullptr;  // of the call; null for a function that was not offered
    std::vector<std::string> keys_;   // of the call so far

    std::string key_;
    TypeSet types_;
    size_t value_begin_ = 0;
    bool line_ = false;      // the value began on a line of its own
    bool repeated_ = false;  // the key came before: the value is dropped
    bool string_ = false;    // it is certain to be a string and passed on as it comes
};

// <function=NAME> and what follows it, before the call is announced.
QwenXmlReader::Next QwenXmlReader::name(std::vector<AnswerPart>& out) {
    TextScan scan{text_, at_};
    scan.skip_space();
    std::string_view name;
    Match match = attribute(scan, kFunction, name);
    if (match == Match::yes) {
        scan.skip_space();
        TextScan parameter = scan, close = scan;
        const Match first = parameter.literal(kParameter), none = close.literal(kFunctionClose);
        match = first == Match::yes || none == Match::yes           ? Match::yes
                : first == Match::partial || none == Match::partial ? Match::partial
                                                                    : Match::no;
    }
    if (match == Match::partial && !end_) return Next::wait;
    if (match != Match::yes) return no_call_here();
    out.push_back({.kind = AnswerPart::Kind::call_started, .text = std::string(name)});
    add_arguments("{", out);
    const auto tool =
        std::find_if(tools_.begin(), tools_.end(), [&](const ToolSpec& t) { return t.name == name; });
    tool_ = tool == tools_.end() ? nullptr : &*tool;
    keys_.clear();
    calls_++;
    at_ = scan.at;
    where_ = Where::parameters;
    return Next::go_on;
}

// A parameter's tag, or the function's end.
QwenXmlReader::Next QwenXmlReader::parameters(std::vector<AnswerPart>& out) {
    TextScan scan{text_, at_};
    scan.skip_space();
    TextScan close = scan;
    std::string_view key;
    const Match parameter = attribute(scan, kParameter, key), closed = close.literal(kFunctionClose);
    if (closed == Match::yes) {
        at_ = close.at;
        finish_call(true, out);
        where_ = Where::tail;
        return Next::go_on;
    }
    if (parameter == Match::yes) {
        // The byte after the tag says how the value will end.
        if (scan.ended() && !end_) return Next::wait;
        begin_value(key, scan.at);
        return Next::go_on;
    }
    if ((parameter == Match::partial || closed == Match::partial) && !end_) return Next::wait;
    if (end_ && (parameter == Match::partial || closed == Match::partial)) at_ = text_.size();
    finish_call(false, out);
    return Next::done;
}

void QwenXmlReader::begin_value(std::string_view key, size_t at) {
    key_ = key;
    repeated_ = std::find(keys_.begin(), keys_.end(), key_) != keys_.end();
    types_ = tool_ ? parameter_types(*tool_, key_) : TypeSet{TypeSet::string};
    string_ = false;
    line_ = at < text_.size() && text_[at] == '\n';
    // An empty value may share its one line break with the closing tag.
    at_ = at;
    value_begin_ = line_ ? at + 1 : at;
    where_ = Where::value;
}

QwenXmlReader::Next QwenXmlReader::value(std::vector<AnswerPart>& out) {
    for (;;) {
        const size_t found = text_.find(line_ ? '\n' : '<', at_);
        if (found == text_.npos) break;
        size_t next = 0;
        const Match match = parameter_end(found, next);
        if (match == Match::yes) {
            end_value(found, out);
            at_ = next;
            where_ = Where::parameters;
            return Next::go_on;
        }
        if (match == Match::partial) {
            if (!end_) {
                pass_value(found, out);
                at_ = found;
                return Next::wait;
            }
            cut_value(found, out);
            return Next::done;
        }
        at_ = found + 1;
    }
    at_ = text_.size();
    if (end_) {
        cut_value(at_, out);
        return Next::done;
    }
    pass_value(at_, out);
    return Next::wait;
}

// Whether the value ends at `from`; `next` is then the tag after its closing tag. An answer that ends after a
// whole closing tag has ended the value.
Match QwenXmlReader::parameter_end(size_t from, size_t& next) const {
    TextScan scan{text_, from};
    const Match line = line_ ? scan.literal("\n") : Match::yes;
    if (line != Match::yes) return line;
    if (const Match tag = scan.literal(kParameterClose); tag != Match::yes) return tag;
    next = scan.at;
    scan.skip_space();
    TextScan function = scan;
    const Match parameter = scan.literal(kParameter);
    Match closed = function.literal(kFunctionClose);
    if (closed == Match::yes) {
        next = function.at - kFunctionClose.size();
        function.skip_space();
        closed = function.literal(kCallClose);
    }
    if (parameter == Match::yes) next = scan.at - kParameter.size();
    if (parameter == Match::yes || closed == Match::yes) return Match::yes;
    if (parameter == Match::no && closed == Match::no) return Match::no;
    return end_ ? Match::yes : Match::partial;
}

std::string QwenXmlReader::key_json() const {
    std::string out = keys_.empty() ? "\"" : ", \"";
    append_json_escaped(key_, out);
    return out + "\": ";
}

// Passes on the value up to `to` where it is certain to be a string. Text before at_ was looked at already.
void QwenXmlReader::pass_value(size_t to, std::vector<AnswerPart>& out) {
    if (repeated_ || to <= value_begin_) return;
    const std::string_view text = text_.substr(value_begin_, to - value_begin_);
    if (!string_) {
        if (!types_.has(TypeSet::string) || may_be_other_than_string(types_, text)) return;
        string_ = true;
        add_arguments(key_json() + '"', out);
    }
    std::string escaped;
    append_json_escaped(text, escaped);
    add_arguments(escaped, out);
    value_begin_ = to;
}

void QwenXmlReader::end_value(size_t to, std::vector<AnswerPart>& out) {
    if (repeated_) return;
    pass_value(to, out);
    if (string_) {
        add_arguments("\"", out);
    } else {
        const std::string_view text = to > value_begin_ ? text_.substr(value_begin_, to - value_begin_) : "";
        add_arguments(key_json() + parameter_json(types_, text), out);
    }
    keys_.push_back(key_);
}

// The answer ends inside the value.
void QwenXmlReader::cut_value(size_t to, std::vector<AnswerPart>& out) {
    pass_value(to, out);
    if (string_) add_arguments("\"", out);
    at_ = text_.size();
    finish_call(false, out);
}

void QwenXmlReader::finish_call(bool whole, std::vector<AnswerPart>& out) {
    add_arguments("}", out);
    out.push_back({.kind = AnswerPart::Kind::call_finished, .whole = whole});
}

// After </function>: the end, or another function in the same pair of tags.
QwenXmlReader::Next QwenXmlReader::tail() {
    TextScan close{text_, at_};
    close.skip_space();
    TextScan function = close;
    const Match closed = close.literal(kCallClose), again = function.literal(kFunction);
    if (closed == Match::yes) {
        at_ = close.at;
        return Next::done;
    }
    if (again == Match::yes) {
        where_ = Where::name;
        return Next::go_on;
    }
    if ((closed == Match::partial || again == Match::partial) && !end_) return Next::wait;
    if (end_ && (closed == Match::partial || again == Match::partial)) at_ = text_.size();
    return Next::done;
}

// <tag NAME>: a name of one line.
Match QwenXmlReader::attribute(TextScan& scan, std::string_view tag, std::string_view& name) const {
    if (const Match match = scan.literal(tag); match != Match::yes) return match;
    const size_t stop = scan.text.find_first_of(">\n<", scan.at);
    const size_t length = std::min(stop, scan.text.size()) - scan.at;
    if (length > kCallNameMax) return Match::no;
    if (stop == scan.text.npos) return Match::partial;
    if (scan.text[stop] != '>' || length == 0) return Match::no;
    name = scan.text.substr(scan.at, length);
    scan.at = stop + 1;
    return Match::yes;
}

}  // namespace

std::unique_ptr<CallReader> make_qwen_xml_reader(std::span<const ToolSpec> tools) {
    return std::make_unique<QwenXmlReader>(tools);
}

}  // namespace sparkinfer
