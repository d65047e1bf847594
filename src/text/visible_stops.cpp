#include "text/visible_stops.h"

#include <algorithm>

namespace sparkinfer {

VisibleStops::VisibleStops(AnswerSplitter splitter, std::vector<std::string> stops)
    : splitter_(std::move(splitter)),
      matcher_(stops),
      stops_(std::any_of(stops.begin(), stops.end(), [](const std::string& stop) { return !stop.empty(); })) {
}

void VisibleStops::push(std::string_view text, std::vector<AnswerPart>& out) {
    if (matched()) return;
    if (!stops_) return splitter_.push(text, out);
    parts_.clear();
    splitter_.push(text, parts_);
    pass(out);
}

void VisibleStops::finish(std::vector<AnswerPart>& out) {
    if (matched()) return;
    if (!stops_) return splitter_.finish(out);
    parts_.clear();
    splitter_.finish(parts_);
    pass(out);
    release(out);
}

void VisibleStops::pass(std::vector<AnswerPart>& out) {
    for (AnswerPart& part : parts_) {
        if (part.kind != AnswerPart::Kind::content) {
            release(out);
            out.push_back(std::move(part));
            continue;
        }
        // Byte by byte: the matcher takes the leftmost of what one push holds, which would depend on the cut.
        std::string shown;
        for (size_t i = 0; i < part.text.size() && !matched(); ++i)
            shown += matcher_.push(std::string_view(part.text).substr(i, 1));
        if (!shown.empty()) out.push_back({.kind = AnswerPart::Kind::content, .text = std::move(shown)});
        if (matched()) return;
    }
}

// Content that did not become a stop string before other parts or the end.
void VisibleStops::release(std::vector<AnswerPart>& out) {
    std::string held = matcher_.finish();
    if (!held.empty()) out.push_back({.kind = AnswerPart::Kind::content, .text = std::move(held)});
}

}  // namespace sparkinfer
