#include "text/grammar.h"

#include <list>
#include <mutex>
#include <unordered_map>
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

// Compiled grammars by their text, most recently used first.
struct GrammarCompiler::State {
    struct Entry {
        std::string text;
        size_t bytes;
        std::shared_ptr<const GrammarMatcher> start;  // never advanced
    };

    ffi::GrammarEnv* env = nullptr;
    Options options;
    std::mutex mutex;
    std::list<Entry> entries;
    std::unordered_map<std::string_view, std::list<Entry>::iterator> by_text;
    Stats stats;

    State(ffi::GrammarEnv* e, Options o) : env(e), options(o) {}
    State(const State&) = delete;
    State& operator=(const State&) = delete;
    ~State() { ffi::si_grammar_env_free(env); }

    std::shared_ptr<const GrammarMatcher> find(const std::string& text) {
        const std::lock_guard lock(mutex);
        const auto found = by_text.find(text);
        if (found == by_text.end()) {
            ++stats.misses;
            return nullptr;
        }
        ++stats.hits;
        entries.splice(entries.begin(), entries, found->second);
        return found->second->start;
    }

    void keep(Entry entry) {
        const std::lock_guard lock(mutex);
        if (entry.bytes > options.cache_bytes || by_text.contains(entry.text)) return;
        stats.bytes += entry.bytes;
        entries.push_front(std::move(entry));
        by_text.emplace(entries.front().text, entries.begin());
        while (stats.bytes > options.cache_bytes) {
            stats.bytes -= entries.back().bytes;
            by_text.erase(entries.back().text);
            entries.pop_back();
        }
        stats.grammars = entries.size();
    }
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
    if (auto start = state_->find(grammar.parts)) return start->clone();
    ffi::GrammarMatcher* rust = nullptr;
    size_t bytes = 0;
    ffi::Bytes message{};
    const int code = ffi::si_grammar_compile(state_->env, ffi::str(grammar.parts), &rust, &bytes, &message);
    if (code != 0) return ffi::take_error(code, message, "");
    const auto start =
        std::make_shared<GrammarMatcher>(GrammarMatcher(std::make_unique<GrammarMatcher::Handle>(rust)));
    state_->keep({grammar.parts, bytes + 2 * grammar.parts.size(), start});
    return start->clone();
}

GrammarCompiler::Stats GrammarCompiler::stats() const {
    const std::lock_guard lock(state_->mutex);
    return state_->stats;
}

}  // namespace sparkinfer
