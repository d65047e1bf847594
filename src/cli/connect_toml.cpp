#include "cli/connect_toml.h"

#include <algorithm>
#include <string_view>

namespace sparkinfer {

namespace {

// One statement with the blanks and comments before it: a header, a key with its value, or the file's end.
struct Statement {
    std::string_view lead, text;  // text: up to and with its line's end; empty at the file's end
    std::string name;             // dotted, without quotes and spaces
    bool header = false;
};

// Cuts the text where statements begin: strings, comments and brackets may hold line breaks and brackets.
class Scanner {
  public:
    explicit Scanner(std::string_view text) : text_(text) {}

    Result<std::vector<Statement>> statements() {
        std::vector<Statement> all;
        while (at_ < text_.size()) {
            const size_t begin = at_;
            while (at_ < text_.size() && blank_line()) skip_line();
            Statement s;
            s.lead = text_.substr(begin, at_ - begin);
            const size_t first = at_;
            TRY_VOID(skip_statement());
            s.text = text_.substr(first, at_ - first);
            s.name = name_of(s.text, &s.header);
            all.push_back(std::move(s));
        }
        return all;
    }

  private:
    bool blank_line() const {
        const size_t c = text_.find_first_not_of(" \t\r", at_);
        return c == std::string_view::npos || text_[c] == '\n' || text_[c] == '#';
    }
    void skip_line() { at_ = std::min(text_.find('\n', at_), text_.size() - 1) + 1; }

    Result<void> skip_statement() {
        for (int depth = 0; at_ < text_.size();) {
            const char c = text_[at_];
            if (c == '"' || c == '\'') {
                TRY_VOID(skip_string(c));
                continue;
            }
            if (c == '#') {
                skip_line();
                if (depth == 0) return {};
                continue;
            }
            depth += (c == '[' || c == '{') - (c == ']' || c == '}');
            ++at_;
            if (c == '\n' && depth == 0) return {};
        }
        return {};
    }

    Result<void> skip_string(char quote) {
        const std::string triple(3, quote);
        const bool lines = text_.substr(at_, 3) == triple;
        const size_t begin = at_;
        at_ += lines ? 3 : 1;
        while (at_ < text_.size()) {
            if (quote == '"' && text_[at_] == '\\') {
                at_ += 2;
            } else if (lines ? text_.substr(at_, 3) == triple : text_[at_] == quote) {
                at_ += lines ? 3 : 1;
                return {};
            } else if (!lines && text_[at_] == '\n') {
                break;
            } else {
                ++at_;
            }
        }
        return bad_input("the existing configuration: is not TOML: the string at byte {} has no end", begin);
    }

    static std::string name_of(std::string_view text, bool* header) {
        const size_t first = text.find_first_not_of(" \t");
        *header = first != std::string_view::npos && text[first] == '[';
        std::string name;
        bool quoted = false;
        for (size_t i = *header ? text.find_first_not_of(" \t[", first) : 0; i < text.size(); ++i) {
            const char c = text[i];
            if (c == '"' || c == '\'')
                quoted = !quoted;
            else if (!quoted && (c == ']' || c == '=' || c == '\n'))
                break;
            else if (quoted || (c != ' ' && c != '\t' && c != '\r'))
                name += c;
        }
        return name;
    }

    std::string_view text_;
    size_t at_ = 0;
};

bool within(const std::string& name, const std::string& table) {
    return name == table || name.starts_with(table + ".");
}

}  // namespace

Result<std::string> merge_toml(const std::string& existing,
                               const std::vector<std::pair<std::string, std::string>>& keys,
                               const std::string& table, const std::string& section) {
    TRY(const std::vector<Statement> statements, Scanner(existing).statements());
    std::string root, kept;
    for (const auto& [name, value] : keys) root += fmt::format("{} = {}\n", name, value);
    std::string current;  // the table that keys belong to
    bool dropping = false;
    for (const Statement& s : statements) {
        const bool was_dropping = dropping;
        if (s.header) {
            current = s.name;
            dropping = within(current, table);
        }
        const std::string full = s.header ? s.name : current.empty() ? s.name : current + "." + s.name;
        const bool parent = !s.header && !s.name.empty() && table.starts_with(full + ".");
        if (!dropping && !s.header && (parent || within(full, table)))
            return bad_input(
                "the existing configuration: gives {} in a form that cannot be replaced, expected a table "
                "[{}]",
                full, table);
        const bool ours =
            !s.header && current.empty() &&
            std::any_of(keys.begin(), keys.end(), [&](const auto& key) { return key.first == s.name; });
        // What stands before a table belongs to it, or to the one before it.
        if (!was_dropping || !dropping) kept += s.lead;
        if (!dropping && !ours) kept += s.text;
    }
    kept.resize(kept.find_last_not_of(" \t\r\n") + 1);
    if (!kept.empty() && kept.back() != '\n') kept += '\n';
    return root + kept + "\n" + section;
}

}  // namespace sparkinfer
