#include "server/model_service.h"

#include <ctime>

#include "server/prompt.h"
#include "server/request_params.h"
#include "server/running.h"

namespace sparkinfer {
namespace {

constexpr int32_t kMaxAnswers = 64;

class Live final : public ModelService {
  public:
    Live(EngineThread& engine, Tokenizer tokenizer, ServiceOptions options)
        : engine_(engine),
          tokenizer_(std::move(tokenizer)),
          options_(std::move(options)),
          turns_(options_.replay_bytes) {}

    Result<void> open() {
        const EngineOptions& engine = engine_.options();
        TRY(PromptMaker maker, PromptMaker::make(engine_.metadata(), tokenizer_));
        prompts_.emplace(std::move(maker));
        TRY(GrammarCompiler compiler, GrammarCompiler::make(tokenizer_));
        grammars_.emplace(std::move(compiler));
        limits_ = {options_.sampling, options_.vocab, engine.context, engine.top_logprobs, kMaxAnswers};
        card_.id = options_.id;
        card_.aliases = options_.aliases;
        card_.created = int64_t(std::time(nullptr));
        card_.context = engine.context;
        card_.trained_context = options_.trained_context;
        card_.vocab = options_.vocab;
        card_.slots = engine.slots;
        card_.chat_template = prompts_->template_source();
        card_.tools = prompts_->format().tools != ToolFormat::none;
        card_.reasoning = prompts_->format().reasoning;
        return {};
    }

    const ModelCard& card() const override { return card_; }
    const Tokenizer& tokenizer() const override { return tokenizer_; }

    ApiResult<std::shared_ptr<Prepared>> prepare(const ChatRequest& request) override {
        TRY_VOID(check_tools(request));
        TRY(ChatPrompt prompt, prompts_->chat(request, turns_));
        auto ready = std::make_shared<ReadyRequest>();
        ready->prompt = std::move(prompt.tokens);
        ready->notices = std::move(prompt.notices);
        ready->prompt_tail = std::move(prompt.tail);
        ready->tools = request.tools;
        if (request.tool_choice.kind == ToolChoice::Kind::none) ready->tools.clear();
        ready->rules.format = prompts_->format();
        ready->rules.in_reasoning = starts_in_reasoning(ready->rules.format, prompt.text);
        TRY(ready->make_constraint, answer_constraint(request, ready->rules.format, ready->rules.in_reasoning,
                                                      {&tokenizer_, &*grammars_}, ready->notices));
        ready->remember = !request.continue_final_message;
        ready->engine.checkpoints = std::move(prompt.checkpoints);
        return finish(std::move(ready), request.params, request.cache_salt);
    }

    ApiResult<std::shared_ptr<Prepared>> prepare(const TextRequest& request) override {
        auto ready = std::make_shared<ReadyRequest>();
        if (const auto* text = std::get_if<std::string>(&request.prompt)) {
            auto ids = tokenizer_.encode(*text, Tokenizer::Specials::parse);
            if (!ids.ok()) return bad_request("prompt", "{}", ids.error().message);
            ready->prompt = std::move(ids).value();
        } else {
            ready->prompt = std::get<std::vector<TokenId>>(request.prompt);
        }
        if (ready->prompt.empty())
            return bad_request("prompt", "the prompt has no tokens, expected at least one");
        for (const TokenId id : ready->prompt)
            if (raw(id) < 0 || raw(id) >= limits_.vocab)
                return bad_request("prompt", "token id {} is not in the vocabulary, 0 to {}", raw(id),
                                   limits_.vocab - 1);
        TRY(ready->make_constraint,
            answer_constraint(request.format, {&tokenizer_, &*grammars_}, ready->notices));
        ready->rules.raw = true;
        ready->echo = request.echo;
        if (request.echo && request.prompt_logprobs && request.params.logprobs >= 0)
            ready->engine.prompt_logprobs = request.params.logprobs;
        return finish(std::move(ready), request.params, request.cache_salt);
    }

    ApiResult<std::string> render(const ChatRequest& request) override { return prompts_->render(request); }

    ApiResult<std::shared_ptr<RunningAnswer>> start(std::shared_ptr<Prepared> prepared, std::string answer_id,
                                                    AnswerSink sink) override {
        auto running =
            std::make_shared<Running>(engine_, turns_, std::static_pointer_cast<ReadyRequest>(prepared),
                                      std::move(answer_id), std::move(sink));
        TRY_VOID(running->start());
        return std::shared_ptr<RunningAnswer>(std::move(running));
    }

  private:
    ApiResult<void> check_tools(const ChatRequest& request) const {
        if (request.tools.empty() || request.tool_choice.kind == ToolChoice::Kind::none) return {};
        if (!card_.tools)
            return bad_request("tools",
                               "this model's chat template has no tool format that is known, expected a "
                               "request without tools");
        if (request.tool_choice.kind == ToolChoice::Kind::named)
            for (const ToolSpec& tool : request.tools)
                if (tool.name == request.tool_choice.name) return {};
        if (request.tool_choice.kind == ToolChoice::Kind::named)
            return bad_request("tool_choice", "there is no tool '{}' in tools", request.tool_choice.name);
        return {};
    }

    // What chats and texts have in common.
    ApiResult<std::shared_ptr<Prepared>> finish(std::shared_ptr<ReadyRequest> ready,
                                                const AnswerParams& params, const std::string& salt) {
        ready->engine.prompt = ready->prompt;
        ready->engine.cache_salt = salt;
        ready->choices = params.n;
        ready->rules.tokenizer = &tokenizer_;
        ready->rules.tools = &ready->tools;
        ready->rules.stop = params.stop;
        ready->rules.logprobs = params.logprobs >= 0;
        TRY_VOID(apply_params(params, limits_, tokenizer_.end_tokens(), ready->engine));
        return std::shared_ptr<Prepared>(std::move(ready));
    }

    EngineThread& engine_;
    Tokenizer tokenizer_;
    ServiceOptions options_;
    std::optional<PromptMaker> prompts_;
    std::optional<GrammarCompiler> grammars_;
    SampledTurns turns_;
    ParamLimits limits_;
    ModelCard card_;
};

}  // namespace

Result<std::unique_ptr<ModelService>> ModelService::make(EngineThread& engine, ServiceOptions options) {
    TRY(Tokenizer tokenizer, Tokenizer::from_metadata(engine.metadata()));
    auto live = std::make_unique<Live>(engine, std::move(tokenizer), std::move(options));
    TRY_VOID(live->open());
    return std::unique_ptr<ModelService>(std::move(live));
}

}  // namespace sparkinfer
