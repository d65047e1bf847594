// template_input.h — a canonical chat as the JSON that chat templates expect (OpenAI's shape).
#pragma once
#include <string>
#include <vector>

#include "server/chat.h"
#include "text/history.h"

namespace sparkinfer {

// What is known of a model's template beyond running it.
struct TemplateTraits {
    std::string source;  // of the template
    TemplateHabits habits;
};

struct TemplateInput {
    std::string messages;              // JSON array
    std::string tools;                 // JSON array; empty: none
    std::string kwargs;                // JSON object; empty: none
    std::vector<std::string> notices;  // what was said otherwise than it came, one sentence each
};

// Tools are left out with tool_choice none. Reasoning efforts are told to templates that know the word, in
// the spelling they know.
ApiResult<TemplateInput> template_input(const ChatRequest& request, const TemplateTraits& traits);

}  // namespace sparkinfer
