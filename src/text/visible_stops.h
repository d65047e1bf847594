// visible_stops.h — the client's stop strings, in what the client sees as content and nowhere else.
#pragma once
#include <string>
#include <string_view>
#include <vector>

#include "text/answer_splitter.h"
#include "text/decoder.h"

namespace sparkinfer {

// The parts of an answer up to the first stop string. Reasoning and calls hold none, and one that begins
// before a call does not go on after it. Of several stop strings the one that is complete first counts, so
// the answer does not depend on how the text is cut. Not thread-safe.
class VisibleStops {
  public:
    // Empty stop strings are ignored.
    VisibleStops(AnswerSplitter splitter, std::vector<std::string> stops);

    // As the splitter's; text that may yet become a stop string is held back. After a match: nothing more.
    void push(std::string_view text, std::vector<AnswerPart>& out);
    void finish(std::vector<AnswerPart>& out);

    bool matched() const { return matcher_.matched(); }
    const std::string& match() const { return matcher_.match(); }  // the stop string; empty before
    bool in_reasoning() const { return splitter_.in_reasoning(); }

  private:
    void pass(std::vector<AnswerPart>& out);
    void release(std::vector<AnswerPart>& out);

    AnswerSplitter splitter_;
    StopMatcher matcher_;
    bool stops_;
    std::vector<AnswerPart> parts_;
};

}  // namespace sparkinfer
