#include "cli/nearest.h"

#include <algorithm>
#include <utility>

namespace sparkinfer {

size_t edit_distance(const std::string& a, const std::string& b) {
    std::vector<size_t> row(b.size() + 1);
    for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
    for (size_t i = 1; i <= a.size(); ++i) {
        size_t diagonal = std::exchange(row[0], i);
        for (size_t j = 1; j <= b.size(); ++j) {
            const size_t change = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
            diagonal = row[j];
            row[j] = std::min({change, row[j] + 1, row[j - 1] + 1});
        }
    }
    return row[b.size()];
}

std::string nearest_word(const std::string& word, const std::vector<std::string>& known) {
    std::string nearest;
    size_t distance = std::max<size_t>(2, word.size() / 3) + 1;
    for (const std::string& one : known) {
        const size_t found = edit_distance(word, one);
        if (found >= distance) continue;
        distance = found;
        nearest = one;
    }
    return nearest;
}

}  // namespace sparkinfer
