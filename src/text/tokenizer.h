// tokenizer.h — text to token ids and back, by the tokenizer that a model file carries.
//
//     TRY(Tokenizer tokenizer, Tokenizer::from_metadata(engine.metadata()));
//     TRY(auto ids, tokenizer.encode("Hello", Tokenizer::Specials::parse));
//     std::string text = tokenizer.decode(ids);
#pragma once
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/metadata.h"
#include "core/result.h"
#include "core/types.h"
#include "text/rendered.h"

namespace sparkinfer {

namespace ffi {
struct Tokenizer;
}

// What a token is for. The values are those of the C ABI.
enum class TokenKind : uint8_t {
    normal = 0,
    control = 1,       // structure of the prompt: <|im_start|>; never text of a message, not shown in answers
    user_defined = 2,  // always matched in text and shown in answers: <think>
    unused = 3,        // a padding row of the embedding table
    byte = 4,
};

// Owns the vocabulary; move-only. Const use is safe from any number of threads.
class Tokenizer {
  public:
    enum class Specials {
        parse,  // control tokens in the text are recognised, as Hugging Face does
        none,   // control tokens in the text are plain text; user-defined tokens are matched all the same
    };

    // From GGUF metadata (tokenizer.ggml.*: byte-level BPE with the pre-tokenisers qwen35, qwen2, llama-bpe,
    // smollm), or, for a folder, from the text of "tokenizer.json" with "tokenizer_config.json" and
    // "generation_config.json". Errors: bad_input that names the key.
    static Result<Tokenizer> from_metadata(const Metadata& metadata);

    Tokenizer(Tokenizer&&) noexcept;
    Tokenizer& operator=(Tokenizer&&) noexcept;
    ~Tokenizer();

    // Errors: bad_input for invalid UTF-8, naming the byte. `add_special` adds what the file asks to put
    // around a text (add_bos_token, add_eos_token; the post-processor of a tokenizer.json).
    Result<std::vector<TokenId>> encode(std::string_view text, Specials specials,
                                        bool add_special = true) const;

    // A chat: control tokens come from template text only. Nothing is added around it.
    Result<std::vector<TokenId>> encode(const Rendered& chat) const;

    // Text of whole sequences; incomplete UTF-8 becomes U+FFFD. Control tokens are left out unless kept.
    std::string decode(std::span<const TokenId> ids, bool keep_control = false) const;

    // Rows of the vocabulary; ids are 0 .. size() - 1.
    int32_t size() const { return size_; }
    bool contains(TokenId id) const { return raw(id) >= 0 && raw(id) < size_; }

    // The raw bytes a token stands for (maybe no whole character); empty for an id outside the vocabulary,
    // which an embedding table padded with more rows can produce.
    std::string_view piece(TokenId id) const;
    TokenKind kind(TokenId id) const;

    // The token with exactly this text, control and user-defined ones first.
    std::optional<TokenId> find(std::string_view text) const;

    std::optional<TokenId> bos() const { return bos_; }
    std::optional<TokenId> eos() const { return eos_; }

    // Tokens after which an answer is over, sorted: what the file's eos and eot ids, generation_config.json
    // and the well-known names of end tokens say, together.
    const std::vector<TokenId>& end_tokens() const { return end_tokens_; }

    // The object behind the C ABI, for what of this folder works on it; alive as long as the tokenizer.
    const ffi::Tokenizer* rust() const;

  private:
    struct Handle;
    Tokenizer(std::unique_ptr<Handle> handle, std::string source);
    static Result<Tokenizer> from_gguf(const Metadata& metadata);
    static Result<Tokenizer> from_folder(const Metadata& metadata);
    Result<std::vector<TokenId>> encode_with(std::string_view text, int control,
                                             std::span<const ByteRange> guarded, bool add_special) const;
    void add_end_names();
    void finish_end_tokens();

    std::unique_ptr<Handle> handle_;
    std::string source_;
    int32_t size_ = 0;
    std::optional<TokenId> bos_;
    std::optional<TokenId> eos_;
    std::vector<TokenId> end_tokens_;
};

}  // namespace sparkinfer
