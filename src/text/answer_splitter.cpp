#include "text/answer_splitter.h"

#include <algorithm>
#include <iterator>

#include "text/call_reader.h"

namespace sparkinfer {
namespace {

using Kind = AnswerPart::Kind;

// Appends text to `out`, to the last part if it is of the same kind.
void add_text(Kind kind, std::string_view text, std::vector<AnswerPart>& out) {
    if (text.empty()) return;
    if (!out.empty() && out.back().kind == kind)
        out.back().text += text;
    else
        out.push_back({.kind = kind, .text = std::string(text)});
}

// Bytes at the end of `text` that are the beginning of `tag`, but not all of it.
size_t partial_tag(std::string_view text, std::string_view tag) {
    for (size_t n = std::min(tag.size() - 1, text.size()); n > 0; --n)
        if (text.ends_with(tag.substr(0, n))) return n;
    return 0;
}

// Where the run of line breaks begins that ends before `at`.
size_t before_line_breaks(std::string_view text, size_t at) {
    while (at > 0 && text[at - 1] == '\n') --at;
    return at;
}

}  // namespace

struct AnswerSplitter::Impl {
    enum class Where {
        opening,            // is there a think_open?
        reasoning_opening,  // does the model repeat the think_open of the prompt?
        reasoning_lead,     // line breaks before the reasoning
        reasoning,
        content_lead,  // line breaks after markup
        content,
        call
    };

    AnswerFormat format;
    std::vector<ToolSpec> tools;
    SplitOptions options;
    Where where;
    std::string held;     // what is not decided yet; in a call: from the line breaks before its tag on
    size_t call_tag = 0;  // of held: where the call's tag begins
    bool call_in_reasoning = false;
    std::unique_ptr<CallReader> reader;
    std::vector<AnswerPart> inner;  // of a call in the reasoning, until it is complete

    bool calls() const { return !tools.empty() && format.tools != ToolFormat::none; }
    void run(bool end, std::vector<AnswerPart>& out) {
        while (!held.empty() && step(end, out)) {
        }
    }
    bool step(bool end, std::vector<AnswerPart>& out);
    bool opening(bool end);
    bool skip_line_breaks(Where next);
    bool text(bool end, std::vector<AnswerPart>& out);
    void begin_call(size_t begin, size_t tag);
    bool call(bool end, std::vector<AnswerPart>& out);
    bool call_within_reasoning(bool end, std::vector<AnswerPart>& out);
    void drop_call(size_t length, std::vector<AnswerPart>& out);
};

// Goes one step; false when more text is needed.
bool AnswerSplitter::Impl::step(bool end, std::vector<AnswerPart>& out) {
    switch (where) {
        case Where::opening:
        case Where::reasoning_opening: return opening(end);
        case Where::reasoning_lead: return skip_line_breaks(Where::reasoning);
        case Where::content_lead: return skip_line_breaks(Where::content);
        case Where::reasoning:
        case Where::content: return text(end, out);
        case Where::call: return call_in_reasoning ? call_within_reasoning(end, out) : call(end, out);
    }
    return false;
}

// White space and think_open at the beginning of the answer.
bool AnswerSplitter::Impl::opening(bool end) {
    TextScan scan{held};
    scan.skip_space();
    const TextScan::Match match = scan.literal(format.think_open);
    if (match == TextScan::Match::partial && !end) return false;
    if (match == TextScan::Match::yes) held.erase(0, scan.at);
    const bool reasoning = match == TextScan::Match::yes || where == Where::reasoning_opening;
    where = reasoning ? Where::reasoning_lead : Where::content;
    return true;
}

bool AnswerSplitter::Impl::skip_line_breaks(Where next) {
    held.erase(0, std::min(held.find_first_not_of('\n'), held.size()));
    if (held.empty()) return false;
    where = next;
    return true;
}

// Reasoning or content up to the next tag. Line breaks wait for what follows them.
bool AnswerSplitter::Impl::text(bool end, std::vector<AnswerPart>& out) {
    const bool reasoning = where == Where::reasoning;
    const Kind kind = reasoning ? Kind::reasoning : Kind::content;
    const bool with_calls = calls() && (!reasoning || options.calls_in_reasoning);
    const std::string_view all = held;
    const size_t close = reasoning ? all.find(format.think_close) : all.npos;
    const size_t open = with_calls ? all.find(kCallOpen) : all.npos;
    const size_t tag = std::min(close, open);
    if (tag != all.npos) {
        const size_t begin = before_line_breaks(all, tag);
        add_text(kind, all.substr(0, begin), out);
        if (open < close) {
            begin_call(begin, tag);
        } else {
            held.erase(0, tag + format.think_close.size());
            where = Where::content_lead;
        }
        return true;
    }
    size_t keep = 0;
    if (!end && reasoning) keep = partial_tag(all, format.think_close);
    if (!end && with_calls) keep = std::max(keep, partial_tag(all, kCallOpen));
    size_t safe = all.size() - keep;
    if (!end && (reasoning || with_calls)) safe = before_line_breaks(all, safe);
    add_text(kind, all.substr(0, safe), out);
    held.erase(0, safe);
    return false;
}

void AnswerSplitter::Impl::begin_call(size_t begin, size_t tag) {
    held.erase(0, begin);
    call_tag = tag - begin;
    call_in_reasoning = where == Where::reasoning;
    reader = make_call_reader(format.tools, tools);
    inner.clear();
    where = Where::call;
}

// The first `length` held bytes were no call.
void AnswerSplitter::Impl::drop_call(size_t length, std::vector<AnswerPart>& out) {
    where = call_in_reasoning ? Where::reasoning : Where::content;
    add_text(call_in_reasoning ? Kind::reasoning : Kind::content, std::string_view(held).substr(0, length),
             out);
    held.erase(0, length);
    inner.clear();
}

bool AnswerSplitter::Impl::call(bool end, std::vector<AnswerPart>& out) {
    const size_t begin = call_tag + kCallOpen.size();
    switch (reader->read(std::string_view(held).substr(begin), end, out)) {
        case CallReader::State::reading: return false;
        case CallReader::State::no_call: drop_call(call_tag + 1, out); return true;
        case CallReader::State::done: break;
    }
    held.erase(0, begin + reader->at());
    where = Where::content_lead;
    return true;
}

// A call before think_close counts only as a whole, so nothing of it goes out before its end.
bool AnswerSplitter::Impl::call_within_reasoning(bool end, std::vector<AnswerPart>& out) {
    const size_t begin = call_tag + kCallOpen.size();
    std::string_view rest = std::string_view(held).substr(begin);
    const size_t close = rest.find(format.think_close);
    const bool last = end || close != rest.npos;
    if (close != rest.npos)
        rest = rest.substr(0, close);
    else if (!end)
        rest.remove_suffix(partial_tag(rest, format.think_close));
    const CallReader::State state = reader->read(rest, last, inner);
    if (state == CallReader::State::reading) return false;
    const bool whole =
        std::none_of(inner.begin(), inner.end(), [](const AnswerPart& part) { return !part.whole; });
    if (state == CallReader::State::no_call) {
        drop_call(call_tag + 1, out);
    } else if (!whole) {
        drop_call(begin + reader->at(), out);
    } else {
        std::move(inner.begin(), inner.end(), std::back_inserter(out));
        inner.clear();
        held.erase(0, begin + reader->at());
        where = Where::reasoning_lead;
    }
    return true;
}

AnswerSplitter::AnswerSplitter(AnswerFormat format, std::span<const ToolSpec> tools, bool starts_in_reasoning,
                               SplitOptions options)
    : impl_(std::make_unique<Impl>()) {
    impl_->where = !format.reasoning     ? Impl::Where::content
                   : starts_in_reasoning ? Impl::Where::reasoning_opening
                                         : Impl::Where::opening;
    impl_->format = std::move(format);
    impl_->tools.assign(tools.begin(), tools.end());
    impl_->options = options;
}

AnswerSplitter::AnswerSplitter(AnswerSplitter&&) noexcept = default;
AnswerSplitter& AnswerSplitter::operator=(AnswerSplitter&&) noexcept = default;
AnswerSplitter::~AnswerSplitter() = default;

void AnswerSplitter::push(std::string_view text, std::vector<AnswerPart>& out) {
    impl_->held += text;
    impl_->run(false, out);
}

void AnswerSplitter::finish(std::vector<AnswerPart>& out) { impl_->run(true, out); }

bool AnswerSplitter::in_reasoning() const {
    const Impl::Where where = impl_->where;
    return where == Impl::Where::reasoning_opening || where == Impl::Where::reasoning_lead ||
           where == Impl::Where::reasoning || (where == Impl::Where::call && impl_->call_in_reasoning);
}

}  // namespace sparkinfer
