// run.cpp — `sparkinfer run`: a prompt in, an answer out.
#include "cli/answer.h"
#include "cli/commands.h"
#include "cli/machine.h"
#include "cli/model_facts.h"
#include "core/log.h"
#include "text/chat_template.h"

namespace sparkinfer {

namespace {

// Rows of a prompt in one step: enough to use the weights well, few enough that Ctrl-C is heard soon.
constexpr int32_t kChunk = 128;

// The prompt as tokens: in the model's chat template, or (raw) as it is.
Result<std::vector<TokenId>> prompt_ids(const std::string& text, bool raw_text, const Tokenizer& tokenizer,
                                        const Metadata& metadata) {
    if (raw_text) return tokenizer.encode(text, Tokenizer::Specials::parse);
    auto chat = ChatTemplate::from_metadata(metadata);
    if (!chat.ok())
        return Error{chat.error().kind, chat.error().message + " (--raw does without a template)"};
    const auto rendered = chat->render_user(text);
    if (!rendered.ok())
        return Error{rendered.error().kind, fmt::format("{}: {} (--raw does without a template)",
                                                        metadata.source(), rendered.error().message)};
    return tokenizer.encode(rendered.value());
}

// Refuses before the work of tokenizing what cannot be fewer tokens than the context: none is longer than the
// longest of the vocabulary, and normalisation shortens to a quarter at most.
Result<void> check_length(const std::string& text, const Tokenizer& tokenizer, int64_t context) {
    size_t longest = 1;
    for (int32_t id = 0; id < tokenizer.size(); ++id)
        longest = std::max(longest, tokenizer.piece(TokenId(id)).size());
    const size_t least = text.size() / (4 * longest);
    if (least <= size_t(context)) return {};
    return bad_input("the prompt has {} bytes, which is at least {} tokens, and the context is {}",
                     text.size(), least, context);
}

// What was printed of an answer is a text of whole lines, on a terminal and in a file. --json has the bare
// text.
Result<void> end_line(const std::string& text, StandardOutput& out) {
    return text.empty() || text.back() == '\n' ? Result<void>{} : out.write("\n");
}

}  // namespace

Result<int> run_command(const RunOptions& o, Session& session) {
    if (o.logprobs && !o.json) log_warning("--logprobs shows in --json alone");
    TRY(const ModelFacts facts, model_facts(o.model));
    TRY(const Tokenizer tokenizer, Tokenizer::from_metadata(facts.metadata));
    TRY(std::string text, read_text(o.prompt, "the prompt"));
    // A line from a shell or an editor ends in a newline that nobody meant as part of the prompt.
    if (!o.prompt.text && text.size() > 1 && text.back() == '\n') text.pop_back();
    TRY_VOID(check_length(text, tokenizer, o.context.value_or(facts.shape.context)));
    TRY(const std::vector<TokenId> prompt, prompt_ids(text, o.raw, tokenizer, facts.metadata));
    if (prompt.empty()) return bad_input("the prompt has no tokens, expected at least one");

    AnswerPlan plan;
    plan.request.prompt = prompt;
    plan.request.max_tokens = int32_t(o.max_tokens);
    plan.request.stop_tokens = tokenizer.end_tokens();
    plan.request.logprobs = int32_t(o.logprobs.value_or(-1));
    TRY(plan.request.sampling, resolve_sampling(o.sampling, facts.metadata));
    plan.stop = o.stop;
    plan.stream = !o.json;

    TRY(const std::unique_ptr<Backend> backend, session.backend(o.backend, o.threads, o.stored));
    const BackendInfo& info = backend->info();
    const int64_t memory = info.host_memory ? available_memory() : info.memory_bytes;
    EngineOptions engine_options;
    if (info.host_memory) engine_options.chunk = kChunk;
    TRY(engine_options.context,
        choose_context(facts, {int64_t(prompt.size()), o.max_tokens, o.context, memory,
                               kv_bytes_per_token(facts.shape, info.kv_type)}));
    TRY(const std::unique_ptr<Engine> engine, session.engine(o.model, *backend, engine_options));
    const uint64_t seed = plan.request.sampling.seed;
    const bool greedy = plan.request.sampling.temperature <= 0;  // no number is drawn

    TRY(const Answer answer, answer_prompt(*engine, tokenizer, std::move(plan), session));
    if (o.json)
        TRY_VOID(session.out.write(to_json(answer_json(answer, prompt, tokenizer)) + "\n"));
    else
        TRY_VOID(end_line(answer.text, session.out));
    if (!greedy) log_info("seed {}", seed);
    log_line(LogLevel::info, answer_figures(answer, prompt.size()));
    return interrupted() ? kExitInterrupted : 0;
}

}  // namespace sparkinfer
