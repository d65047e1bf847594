// nearest.h — which known word somebody may have meant.
#pragma once
#include <string>
#include <vector>

namespace sparkinfer {

// Levenshtein's distance, in bytes.
size_t edit_distance(const std::string& a, const std::string& b);

// The word of `known` that is nearest to `word`; "" when none is within two changes or a third of it.
std::string nearest_word(const std::string& word, const std::vector<std::string>& known);

}  // namespace sparkinfer
