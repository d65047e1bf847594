// left_out.h — what a translator leaves out of a request: each kind once, in one sentence for all.
#pragma once
#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

namespace sparkinfer {

struct LeftOut {
    std::vector<std::string> kinds = {};

    void add(const std::string& kind) {
        if (std::find(kinds.begin(), kinds.end(), kind) == kinds.end()) kinds.push_back(kind);
    }
    // "WHAT: a, b" among the notices, if there was anything.
    void note(std::string_view what, std::vector<std::string>& notices) const {
        if (kinds.empty()) return;
        std::string sentence(what);
        for (const std::string& kind : kinds) sentence += (&kind == kinds.data() ? ": " : ", ") + kind;
        notices.push_back(std::move(sentence));
    }
};

}  // namespace sparkinfer
