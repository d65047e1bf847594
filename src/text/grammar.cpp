#include "text/grammar.h"

#include <utility>
#include <vector>

#include "core/check.h"
#include "core/json.h"
#include "text/ffi.h"

namespace sparkinfer {

Grammar Grammar::lark(std::string_view text) {
    return {to_json(JsonArray{JsonObject{{"name", "lark"}, {"lark", text}}})};
}

Grammar Grammar::regex(std::string_view pattern) {
    return {to_json(JsonArray{JsonObject{{"name", "regex"}, {"regex", pattern}}})};
}

Grammar Grammar::json_schema(std::string_view schema) {
    return {R"([{"name":"schema","json_schema":)" + std::string(schema) + "}]"};
}

struct GrammarMatcher::Handle {
    ffi::GrammarMatcher* rust = nullptr;

    explicit Handle(ffi::GrammarMatcher* matcher) : rust(matcher) {}
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle() { ffi::si_matcher_free(rust); }
};

GrammarMatcher::GrammarMatcher(std::unique_ptr<Handle> handle) : handle_(std::move(handle)) {}
GrammarMatcher::GrammarMatcher(GrammarMatcher&&) noexcept = default;
GrammarMatcher& GrammarMatcher::operator=(GrammarMatcher&&) noexcept = default;
GrammarMatcher::~GrammarMatcher() = default;

bool GrammarMatcher::advance(TokenId token) {
    bool allowed = false;
    ffi::Bytes message{};
    // A negative id is no token, and neither is this.
    const uint32_t id = raw(token) < 0 ? UINT32_MAX : static_cast<uint32_t>(raw(token));
    const int code = ffi::si_matcher_advance(handle_->rust, id, &allowed, &message);
    if (code != 0) error_ = ffi::take_error(code, message, "").message;
    return code == 0 && allowed;
}

void GrammarMatcher::mask(std::span<uint32_t> bits) {
    ffi::Bytes message{};
    const int code = ffi::si_matcher_mask(handle_->rust, bits.data(), bits.size(), &message);
    if (code != 0) error_ = ffi::take_error(code, message, "").message;
}

void GrammarMatcher::rollback(int32_t tokens) {
    CHECK(tokens >= 0);
    ffi::Bytes message{};
    const int code = ffi::si_matcher_rollback(handle_->rust, static_cast<size_t>(tokens), &message);
    if (code != 0) error_ = ffi::take_error(code, message, "").message;
}

bool GrammarMatcher::accepting() {
    bool accepting = false;
    ffi::Bytes message{};
    const int code = ffi::si_matcher_accepting(handle_->rust, &accepting, &message);
    if (code != 0) error_ = ffi::take_error(code, message, "").message;
    return code == 0 && accepting;
}

Result<GrammarMatcher> GrammarMatcher::clone() const {
    ffi::GrammarMatcher* copy = nullptr;
    ffi::Bytes message{};
    const int code = ffi::si_matcher_clone(handle_->rust, &copy, &message);
    if (code != 0) return ffi::take_error(code, message, "");
    GrammarMatcher matcher(std::make_unique<Handle>(copy));
    matcher.error_ = error_;
    return matcher;
}

struct GrammarCompiler::State {
    ffi::GrammarEnv* env = nullptr;
    TextLru<GrammarMatcher> compiled;  // at their start, never advanced
    TextLru<PreparedSchema> prepared;

    State(ffi::GrammarEnv* e, const Options& options)
        : env(e), compiled(options.cache_bytes), prepared(options.cache_bytes / 4) {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() { ffi::si_grammar_env_free(env); }
};

GrammarCompiler::GrammarCompiler(std::unique_ptr<State> state) : state_(std::move(state)) {}
GrammarCompiler::GrammarCompiler(GrammarCompiler&&) noexcept = default;
GrammarCompiler& GrammarCompiler::operator=(GrammarCompiler&&) noexcept = default;
GrammarCompiler::~GrammarCompiler() = default;

Result<GrammarCompiler> GrammarCompiler::make(const Tokenizer& tokenizer, Options options) {
    std::vector<uint32_t> end_tokens;
    for (TokenId id : tokenizer.end_tokens()) end_tokens.push_back(static_cast<uint32_t>(raw(id)));
    ffi::GrammarEnv* env = nullptr;
    ffi::Bytes message{};
    const int code =
        ffi::si_grammar_env_new(tokenizer.rust(), end_tokens.data(), end_tokens.size(), &env, &message);
    if (code != 0) return ffi::take_error(code, message, "");
    return GrammarCompiler(std::make_unique<State>(env, options));
}

Result<GrammarMatcher> GrammarCompiler::compile(const Grammar& grammar) const {
    if (auto start = state_->compiled.find(grammar.parts)) return start->clone();
    ffi::GrammarMatcher* rust = nullptr;
    size_t bytes = 0;
    ffi::Bytes message{};
    const int code = ffi::si_grammar_compile(state_->env, ffi::str(grammar.parts), &rust, &bytes, &message);
    if (code != 0) return ffi::take_error(code, message, "");
    const auto start =
        std::make_shared<GrammarMatcher>(GrammarMatcher(std::make_unique<GrammarMatcher::Handle>(rust)));
    state_->compiled.keep(grammar.parts, bytes + grammar.parts.size(), start);
    return start->clone();
}

Result<std::shared_ptr<const PreparedSchema>> GrammarCompiler::prepare(const Json& schema,
                                                                       bool strict) const {
    const std::string text = to_json(schema);
    const std::string key = (strict ? "s" : "r") + text;
    if (auto known = state_->prepared.find(key)) return known;
    ffi::Bytes out{}, message{};
    const int code = ffi::si_schema_prepare(ffi::str(text), strict, &out, &message);
    if (code != 0) return ffi::take_error(code, message, "");
    const std::string answer(out.data, out.size);
    ffi::si_text_free_bytes(out);
    TRY(const Json parsed, parse_json(answer, "the prepared schema", {.depth = 256}));
    const JsonObject& object = parsed.get_object();
    auto prepared = std::make_shared<PreparedSchema>();
    prepared->schema = object.at("schema");
    for (const Json& notice : object.at("notices").get_array()) {
        const std::string_view at = notice.get_object().at("pointer").get_string();
        const std::string_view what = notice.get_object().at("text").get_string();
        prepared->notices.push_back(fmt::format("at {}: {}", at.empty() ? "the root" : at, what));
    }
    state_->prepared.keep(key, key.size() + 8 * answer.size(), prepared);
    return std::shared_ptr<const PreparedSchema>(std::move(prepared));
}

TextLru<GrammarMatcher>::Stats GrammarCompiler::stats() const { return state_->compiled.stats(); }

}  // namespace sparkinfer
