// prompt.h — a canonical chat to the tokens of its prompt.
#pragma once
#include <functional>
#include <string>
#include <vector>

#include "server/template_input.h"
#include "server/transcript.h"
#include "text/tokenizer.h"
#include "text/tool_format.h"

namespace sparkinfer {

struct ChatPrompt {
    std::vector<TokenId> tokens;
    std::vector<int32_t> checkpoints;  // lengths at which later requests are likely to branch off, ascending
    std::string text;                  // as rendered, before sampled tokens took their places
    std::string tail;                  // the text behind the header of the turn to be generated
    int32_t replayed = 0;              // turns whose sampled tokens stand in the prompt
    std::vector<std::string> notices;
};

// Owns what a model file says of chats. Threads: any.
class PromptMaker {
  public:
    // Errors: the template does not parse (bad_input). A model without a template refuses chats later.
    static Result<PromptMaker> make(const Metadata& metadata, const Tokenizer& tokenizer);

    bool has_template() const { return template_.has_value(); }
    const std::string& template_source() const { return traits_.source; }
    const AnswerFormat& format() const { return format_; }

    ApiResult<ChatPrompt> chat(ChatRequest request, const SampledTurns& turns) const;
    // The text alone.
    ApiResult<std::string> render(const ChatRequest& request) const;

  private:
    explicit PromptMaker(const Tokenizer& tokenizer) : tokenizer_(&tokenizer) {}
    ApiResult<Rendered> render(const ChatRequest& request, TemplateInput& input) const;
    std::optional<TokenId> header_token() const;  // the control token that begins a turn

    const Tokenizer* tokenizer_;
    std::optional<ChatTemplate> template_;
    TemplateTraits traits_;
    TurnMarks marks_;
    AnswerFormat format_;
};

}  // namespace sparkinfer
