// chat_options.cpp — the flags of `sparkinfer chat`.
#include "cli/chat_settings.h"
#include "cli/option_binder.h"

namespace sparkinfer {

void bind_chat(Binder b, ChatOptions& o) {
    b.model(o.model);
    b.text("-s,--system", "TEXT", "the system prompt", o.system);
    b.text("--load", "FILE", "go on with a conversation that /save has written", o.load);
    b.value(
        "--think", "HOW",
        "reasoning before answers: on, off, low, medium, high, or at most N tokens (default: the template's)",
        [&o](const std::string& word) -> Result<void> {
            TRY_VOID(parse_thinking(word));
            o.thinking = word;
            return {};
        });
    b.integer("-n,--predict", "most tokens of an answer; -1: to the end token (default)", -1, kMaxTokens,
              o.max_tokens);
    b.sampling(o.sampling);
    b.texts("--stop", "TEXT", "end an answer before this text; may be given several times", o.stop);
    b.integer("--ctx", "tokens of context (default: the file's, or what fits into memory)", 1, kMaxTokens,
              o.context);
    b.threads(o.threads);
    b.backend(o.backend);
    b.stored(o.stored, kKvDefault);
    b.flag("--no-history", "neither read nor write the history of typed lines", o.no_history);
}

Result<void> check_chat(const ChatOptions& o) {
    if (o.max_tokens == 0) return usage_error("-n,--predict is '0', expected -1 or a whole number from 1");
    if (o.sampling.temperature.value_or(0) > 2)
        return usage_error("--temp is '{}', expected a number from 0 to 2 in a chat",
                           *o.sampling.temperature);
    return {};
}

}  // namespace sparkinfer
