// ffi.h — the C ABI of the crate rust/text, as rust/text/src/lib.rs defines it, and small owners over it.
// Only the .cpp files of src/text include this.
#pragma once
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "core/result.h"
#include "text/rendered.h"

namespace sparkinfer::ffi {

struct Str {
    const char* data = nullptr;
    size_t size = 0;
};
struct Bytes {
    char* data = nullptr;
    size_t size = 0;
};
struct Ids {
    uint32_t* data = nullptr;
    size_t size = 0;
};
struct Ranges {
    ByteRange* data = nullptr;
    size_t size = 0;
};
struct GgufInput {
    Str pre;
    const Str* tokens;
    const uint8_t* types;
    size_t tokens_count;
    const Str* merges;
    size_t merges_count;
    bool ignore_merges;
    int64_t bos;  // -1: none
    int64_t eos;
};
struct Table {
    const char* pieces;
    const uint64_t* offsets;  // [size + 1]
    const uint8_t* kinds;     // [size]
    size_t size;
};
struct RenderInput {
    Str messages;
    Str tools;
    Str kwargs;
    bool add_generation_prompt;
    bool has_now;
    int64_t now;  // seconds since 1970
};
struct Tokenizer;
struct Template;
struct GrammarEnv;
struct GrammarMatcher;

extern "C" {
int si_tokenizer_from_gguf(const GgufInput* input, Tokenizer** out, Bytes* error);
int si_tokenizer_from_json(Str json, Tokenizer** out, Bytes* error);
void si_tokenizer_free(Tokenizer* handle);
void si_tokenizer_table(const Tokenizer* handle, Table* out);
int64_t si_tokenizer_find(const Tokenizer* handle, Str text);
int si_tokenizer_encode(const Tokenizer* handle, Str text, int control, const ByteRange* guarded,
                        size_t guarded_count, bool add_special, Ids* out, Bytes* error);
int si_template_new(Str source, const Str* control, size_t control_count, Str tokenizer_json, Str specials,
                    Template** out, Bytes* error);
void si_template_free(Template* handle);
int si_template_render(const Template* handle, const RenderInput* input, Bytes* out_text, Ranges* out_guarded,
                       Bytes* error);
int si_grammar_env_new(const Tokenizer* tokenizer, const uint32_t* end_tokens, size_t end_tokens_count,
                       GrammarEnv** out, Bytes* error);
void si_grammar_env_free(GrammarEnv* handle);
int si_grammar_compile(const GrammarEnv* handle, Str grammar, GrammarMatcher** out, size_t* out_bytes,
                       Bytes* error);
int si_matcher_clone(const GrammarMatcher* handle, GrammarMatcher** out, Bytes* error);
void si_matcher_free(GrammarMatcher* handle);
int si_matcher_advance(GrammarMatcher* handle, uint32_t token, bool* out_allowed, Bytes* error);
int si_matcher_mask(GrammarMatcher* handle, uint32_t* bits, size_t words, Bytes* error);
int si_matcher_rollback(GrammarMatcher* handle, size_t tokens, Bytes* error);
int si_matcher_accepting(GrammarMatcher* handle, bool* out, Bytes* error);
int si_schema_prepare(Str schema, bool strict, Bytes* out, Bytes* error);
void si_text_free_bytes(Bytes bytes);
void si_text_free_ids(Ids ids);
void si_text_free_ranges(Ranges ranges);
}

inline Str str(std::string_view s) { return {s.data(), s.size()}; }

// The Error of a call that returned `code` (not 0); takes the message. `source` names the model.
inline Error take_error(int code, Bytes message, std::string_view source) {
    std::string text(message.data ? message.data : "", message.size);
    si_text_free_bytes(message);
    if (!source.empty()) text = std::string(source) + ": " + text;
    return Error{static_cast<ErrorKind>(code), std::move(text)};
}

}  // namespace sparkinfer::ffi
