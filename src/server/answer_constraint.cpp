#include "server/answer_constraint.h"

#include "core/log.h"

namespace sparkinfer {
namespace {

class AnswerConstraint final : public Constraint {
  public:
    explicit AnswerConstraint(AnswerMatcher matcher) : matcher_(std::move(matcher)) {}

    void advance(TokenId token) override {
        matcher_.advance(token);
        tell();
    }
    void mask(std::span<uint32_t> bits) override {
        matcher_.mask(bits);
        tell();
    }
    void rollback(int32_t tokens) override { matcher_.rollback(tokens); }

  private:
    // A grammar that gives up (a limit of work) ends its answer; the operator hears why, once.
    void tell() {
        if (told_ || matcher_.error().empty()) return;
        told_ = true;
        log_warning("the grammar of an answer gave up, which ends the answer: {}", matcher_.error());
    }

    AnswerMatcher matcher_;
    bool told_ = false;
};

AnswerShape::Content content_kind(ResponseFormat::Kind kind) {
    switch (kind) {
        case ResponseFormat::Kind::text: return AnswerShape::Content::free;
        case ResponseFormat::Kind::json_object: return AnswerShape::Content::json_object;
        case ResponseFormat::Kind::json_schema: return AnswerShape::Content::json_schema;
        case ResponseFormat::Kind::regex: return AnswerShape::Content::regex;
        case ResponseFormat::Kind::choice: return AnswerShape::Content::choice;
        case ResponseFormat::Kind::lark: return AnswerShape::Content::lark;
    }
    return AnswerShape::Content::free;
}

void set_content(const ResponseFormat& format, AnswerShape& shape) {
    shape.content = content_kind(format.kind);
    shape.schema = format.schema;
    shape.pattern = format.pattern;
    shape.choices = format.choices;
    shape.strict = true;  // whoever asks for a form gets it, or hears why not
}

// The grammar of a shape; none where answers are free.
ApiResult<std::optional<GrammarMatcher>> matcher(const AnswerShape& shape, const char* field,
                                                 const GrammarCompiler& compiler,
                                                 std::vector<std::string>& notices) {
    auto built = answer_grammar(shape, compiler);
    if (!built.ok()) return bad_request(field, "{}", built.error().message);
    AnswerGrammar answer = std::move(built).value();
    notices.insert(notices.end(), answer.notices.begin(), answer.notices.end());
    if (!answer.grammar) return std::optional<GrammarMatcher>();
    auto compiled = compiler.compile(*answer.grammar);
    if (!compiled.ok()) return bad_request(field, "{}", compiled.error().message);
    return std::optional<GrammarMatcher>(std::move(compiled).value());
}

ApiResult<ConstraintMaker> maker(const Tokenizer& tokenizer, std::optional<GrammarMatcher> grammar,
                                 std::optional<ReasoningBudget> budget) {
    if (!grammar && !budget) return ConstraintMaker();
    auto made = AnswerMatcher::make(tokenizer, std::move(grammar), std::move(budget));
    if (!made.ok()) return bad_request("thinking_budget", "{}", made.error().message);
    auto start = std::make_shared<AnswerMatcher>(std::move(made).value());
    return ConstraintMaker([start]() -> Result<std::shared_ptr<Constraint>> {
        TRY(AnswerMatcher own, start->clone());
        return std::shared_ptr<Constraint>(std::make_shared<AnswerConstraint>(std::move(own)));
    });
}

}  // namespace

ApiResult<ConstraintMaker> answer_constraint(const ChatRequest& request, const AnswerFormat& format,
                                             bool starts_in_reasoning, const AnswerVocabulary& vocabulary,
                                             std::vector<std::string>& notices) {
    AnswerShape shape;
    shape.format = format;
    shape.starts_in_reasoning = starts_in_reasoning;
    const bool silent = request.thinking.enabled == false || request.thinking.effort == "none";
    if (silent) shape.format.reasoning = starts_in_reasoning;
    if (request.tool_choice.kind != ToolChoice::Kind::none) shape.tools = request.tools;
    shape.tool_choice = request.tool_choice;
    shape.parallel_calls = request.parallel_tool_calls;
    set_content(request.format, shape);
    const bool by_tools = request.format.kind == ResponseFormat::Kind::text;
    TRY(std::optional<GrammarMatcher> grammar,
        matcher(shape, by_tools ? "tools" : "response_format", *vocabulary.compiler, notices));
    std::optional<ReasoningBudget> budget;
    if (request.thinking.budget && shape.format.reasoning)
        budget = ReasoningBudget{*request.thinking.budget, starts_in_reasoning, format.think_open,
                                 format.think_close};
    return maker(*vocabulary.tokenizer, std::move(grammar), std::move(budget));
}

ApiResult<ConstraintMaker> answer_constraint(const ResponseFormat& format, const AnswerVocabulary& vocabulary,
                                             std::vector<std::string>& notices) {
    AnswerShape shape;
    set_content(format, shape);
    TRY(std::optional<GrammarMatcher> grammar,
        matcher(shape, "response_format", *vocabulary.compiler, notices));
    return maker(*vocabulary.tokenizer, std::move(grammar), std::nullopt);
}

}  // namespace sparkinfer
