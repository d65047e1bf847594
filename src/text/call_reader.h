// call_reader.h — one tool call of an answer, from after its <tool_call> to its end, in each tool format.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/answer_splitter.h"

namespace sparkinfer {

constexpr std::string_view kCallOpen = "<tool_call>";
constexpr std::string_view kCallClose = "</tool_call>";
constexpr size_t kCallNameMax = 256;  // bytes of a function's or an argument's name

// Reads a text that only grows. What it appends, joined, depends on the text alone.
class CallReader {
  public:
    enum class State {
        reading,  // undecided: more text, or its end, is needed
        done,     // the call, or several in one pair of tags, is over at at()
        no_call   // nothing was announced and this is no call
    };
    virtual ~CallReader() = default;

    // `text`: all of the text from after kCallOpen on. `end`: nothing follows; the state is then not reading.
    virtual State read(std::string_view text, bool end, std::vector<AnswerPart>& out) = 0;
    size_t at() const { return at_; }

  protected:
    // Appends to the arguments of the call that was announced last.
    static void add_arguments(std::string_view json, std::vector<AnswerPart>& out);

    size_t at_ = 0;
};

// The tools must outlive the reader; ToolFormat::none has none.
std::unique_ptr<CallReader> make_call_reader(ToolFormat format, std::span<const ToolSpec> tools);
std::unique_ptr<CallReader> make_qwen_xml_reader(std::span<const ToolSpec> tools);
std::unique_ptr<CallReader> make_hermes_reader();

// Compares a text that may go on with what is expected next.
struct TextScan {
    enum class Match { yes, no, partial };  // partial: the text ends before it is decided
    std::string_view text;
    size_t at = 0;

    Match literal(std::string_view expected);  // on yes, `at` is after it
    void skip_space();
    bool ended() const { return at >= text.size(); }
};

}  // namespace sparkinfer
