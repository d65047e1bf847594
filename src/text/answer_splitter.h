// answer_splitter.h — the text of an answer, as it streams, into reasoning, content and tool calls.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tool_format.h"
#include "text/tools.h"

namespace sparkinfer {

struct AnswerPart {
    enum class Kind {
        reasoning,       // text
        content,         // text
        call_started,    // text: the function's name
        call_arguments,  // text: a piece of its JSON
        call_finished    // the pieces since call_started together are one JSON object
    };
    Kind kind;
    std::string text = {};
    bool whole = true;  // call_finished: false when the call broke off and its JSON was closed for it
};

struct SplitOptions {
    bool calls_in_reasoning = true;  // a call inside the reasoning counts if it is complete
};

// One answer. The parts, joined, do not depend on how the text is cut into pieces; what may still become
// markup is held back, and no more than that. Not thread-safe.
//
// Reasoning   think_open … think_close at the beginning; without think_open where the template opened it.
// Line
//             breaks next to the two tags go, as the templates drop them. An answer that ends before
//             think_close has no content.
// Calls       only where the chat offers tools. A call is announced when its name is followed by a first
//             argument or its end; what looks like one and goes on otherwise is content as it stands. Line
//             breaks around calls go.
// Broken off  an announced call that ends in mid-air (the answer was cut) or goes on with what is no argument
//             is closed with what it has: an unfinished string keeps its text, any other unfinished value is
//             left out, `whole` is false, and the rest of the text is content.
class AnswerSplitter {
  public:
    AnswerSplitter(AnswerFormat format, std::span<const ToolSpec> tools, bool starts_in_reasoning,
                   SplitOptions options = {});
    AnswerSplitter(AnswerSplitter&&) noexcept;
    AnswerSplitter& operator=(AnswerSplitter&&) noexcept;
    ~AnswerSplitter();

    // Appends to `out` what `text` decides.
    void push(std::string_view text, std::vector<AnswerPart>& out);
    // The answer ended: what was held back. Call once.
    void finish(std::vector<AnswerPart>& out);

    bool in_reasoning() const;  // the next text belongs to the reasoning, or to a call inside it

  private:
    struct Impl;
    std::unique_ptr<Impl> impl_;
};

}  // namespace sparkinfer
