// chat_template.h — messages to the prompt text a model was trained on, by the Jinja template in its file.
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "core/metadata.h"
#include "core/result.h"
#include "text/rendered.h"

namespace sparkinfer {

struct RenderOptions {
    std::string_view tools = {};  // JSON array of OpenAI tools; empty: none
    std::string_view kwargs =
        {};  // JSON object of further template variables, such as enable_thinking; empty: none
    bool add_generation_prompt = true;
    std::optional<int64_t> now =
        {};  // seconds since 1970 for strftime_now, shown as UTC; default: this machine's clock
};

// Owns a compiled template; move-only. Const use is safe from any number of threads. The template runs in a
// sandbox: no files, limits on source size, input, output, nesting and work.
class ChatTemplate {
  public:
    // The template of a GGUF ("tokenizer.chat_template"), or of a folder ("chat_template.jinja", else the
    // entry in "tokenizer_config.json"). Errors: bad_input when there is none or it does not parse.
    static Result<ChatTemplate> from_metadata(const Metadata& metadata);

    ChatTemplate(ChatTemplate&&) noexcept;
    ChatTemplate& operator=(ChatTemplate&&) noexcept;
    ~ChatTemplate();

    // `messages` is a JSON array in OpenAI's shape. Tool-call arguments given as a string of JSON become the
    // object, as templates expect. The text is byte for byte what transformers' apply_chat_template gives.
    // Errors: bad_input with what the template refuses, or that it ran too long.
    Result<Rendered> render(std::string_view messages, const RenderOptions& options = {}) const;

    // One user message.
    Result<Rendered> render_user(std::string_view text, const RenderOptions& options = {}) const;

  private:
    struct Handle;
    ChatTemplate(std::unique_ptr<Handle> handle, std::string source);

    std::unique_ptr<Handle> handle_;
    std::string source_;
};

}  // namespace sparkinfer
