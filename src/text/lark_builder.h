// lark_builder.h — a grammar under construction: rules of Lark, and the JSON Schemas that they refer to.
#pragma once
#include <string>
#include <string_view>
#include <unordered_map>

#include "core/json.h"
#include "text/grammar.h"

namespace sparkinfer {

// White space between pieces of markup, as a class of a regex.
constexpr std::string_view kSpace = R"([ \t\r\n])";

class LarkBuilder {
  public:
    // One or more lines of Lark.
    void rules(std::string_view lines) { (text_ += lines) += '\n'; }
    template <class... Args>
    void rule(fmt::format_string<Args...> format, Args&&... args) {
        rules(fmt::format(format, std::forward<Args>(args)...));
    }

    // A part that the rules refer to by what is returned: "@s0". The same schema is one part.
    std::string schema(const Json& prepared);
    std::string regex(std::string_view pattern);
    std::string lark(std::string_view text);

    Grammar build() &&;

    // `text` itself, inside /…/.
    static std::string literal(std::string_view text);

  private:
    std::string part(std::string_view kind, Json value);

    std::string text_;
    JsonArray parts_;
    std::unordered_map<std::string, std::string> schemas_;  // by their text
};

}  // namespace sparkinfer
