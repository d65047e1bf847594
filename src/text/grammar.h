// grammar.h — constrained decoding: which tokens may come next so that an answer follows its grammar.
//
//     TRY(GrammarCompiler compiler, GrammarCompiler::make(tokenizer));       // once for a model
//     TRY(GrammarMatcher matcher, compiler.compile(grammar));                // once for an answer
//     matcher.mask(bits);  …sample…  matcher.advance(token);                 // once for a token
#pragma once
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/json.h"
#include "core/result.h"
#include "text/text_lru.h"
#include "text/tokenizer.h"

namespace sparkinfer {

// A grammar to compile: a JSON list of named parts, the first of which is the start. A part is a Lark text, a
// regex for the whole text or a JSON Schema, and Lark refers to the others as @name. The same text is the
// same grammar. answer_grammar.h makes those of answers.
struct Grammar {
    std::string parts;

    static Grammar lark(std::string_view text);
    static Grammar regex(std::string_view pattern);
    static Grammar json_schema(std::string_view schema);  // as prepare() gives it
};

// Where one answer stands in its grammar. Move-only; one thread at a time. Fails closed: a token that the
// grammar does not allow, or an error (a limit of work), leaves nothing but the end tokens.
class GrammarMatcher {
  public:
    GrammarMatcher(GrammarMatcher&&) noexcept;
    GrammarMatcher& operator=(GrammarMatcher&&) noexcept;
    ~GrammarMatcher();

    // A token that was sampled. False if it was not allowed.
    bool advance(TokenId token);

    // Bit i: token i may come next; [ceil(V/32)] for V rows of the embedding, those beyond the vocabulary
    // never. End tokens are allowed exactly where the text is whole; never is the mask empty: where nothing
    // may come, it is the end tokens.
    void mask(std::span<uint32_t> bits);

    // Forgets the last `tokens` that advance() was called with.
    void rollback(int32_t tokens);

    // Whether the text so far is a whole one. After an end token: whether it was one then.
    bool accepting();

    // What went wrong; empty: nothing. Stays.
    const std::string& error() const { return error_; }

    // Another one at the same place, for a second answer to the same prompt.
    Result<GrammarMatcher> clone() const;

  private:
    friend class GrammarCompiler;
    struct Handle;
    explicit GrammarMatcher(std::unique_ptr<Handle> handle);
    std::unique_ptr<Handle> handle_;
    std::string error_;
};

struct PreparedSchema {
    Json schema;                       // with options for the grammar compiler at its root
    std::vector<std::string> notices;  // what is not enforced, and where
};

// Compiles grammars for one vocabulary and keeps the compiled ones, least recently used first out. Move-only;
// const use is safe from any number of threads.
class GrammarCompiler {
  public:
    struct Options {
        size_t cache_bytes = 64 << 20;  // about what compiled grammars may take; 0: none is kept
    };

    // The tokenizer is not needed afterwards. Takes about a second for 250,000 tokens.
    static Result<GrammarCompiler> make(const Tokenizer& tokenizer, Options options);
    static Result<GrammarCompiler> make(const Tokenizer& tokenizer) { return make(tokenizer, Options()); }

    GrammarCompiler(GrammarCompiler&&) noexcept;
    GrammarCompiler& operator=(GrammarCompiler&&) noexcept;
    ~GrammarCompiler();

    // A matcher at the start. Errors: bad_input with what the grammar has wrong, or which limit it breaks.
    Result<GrammarMatcher> compile(const Grammar& grammar) const;

    // Makes a client's JSON Schema one that compile() takes. Errors: bad_input with a JSON pointer to what
    // cannot be enforced; without `strict` most of that is left out instead, with a notice.
    Result<std::shared_ptr<const PreparedSchema>> prepare(const Json& schema, bool strict) const;

    // Of the cache of compiled grammars.
    TextLru<GrammarMatcher>::Stats stats() const;

  private:
    struct State;
    explicit GrammarCompiler(std::unique_ptr<State> state);
    std::unique_ptr<State> state_;
};

}  // namespace sparkinfer
