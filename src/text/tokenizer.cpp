#include "text/tokenizer.h"

#include <algorithm>
#include <climits>
#include <utility>

#include "core/check.h"
#include "text/decoder.h"
#include "text/ffi.h"
#include "text/json_facts.h"

namespace sparkinfer {

struct Tokenizer::Handle {
    ffi::Tokenizer* rust = nullptr;
    ffi::Table table{};

    explicit Handle(ffi::Tokenizer* tokenizer) : rust(tokenizer) { ffi::si_tokenizer_table(rust, &table); }
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle() { ffi::si_tokenizer_free(rust); }
};

Tokenizer::Tokenizer(std::unique_ptr<Handle> handle, std::string source)
    : handle_(std::move(handle)),
      source_(std::move(source)),
      size_(static_cast<int32_t>(handle_->table.size)) {}
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

const ffi::Tokenizer* Tokenizer::rust() const { return handle_->rust; }

namespace {

std::vector<ffi::Str> views(const std::vector<std::string>& strings) {
    std::vector<ffi::Str> out;
    out.reserve(strings.size());
    for (const std::string& s : strings) out.push_back(ffi::str(s));
    return out;
}

// Token kinds as bytes with the file's values; a missing array means that all are normal.
Result<std::vector<uint8_t>> token_types(const Metadata& metadata, size_t count) {
    TRY(const auto* types, metadata.ints("tokenizer.ggml.token_type"));
    if (!types) return std::vector<uint8_t>(count, 1);
    std::vector<uint8_t> out;
    out.reserve(types->size());
    for (int64_t type : *types)
        out.push_back(type >= 0 && type <= UCHAR_MAX ? static_cast<uint8_t>(type) : 0);
    return out;
}

// An optional token id, checked against the vocabulary.
Result<std::optional<TokenId>> token_id(const Metadata& metadata, std::string_view key, int64_t size) {
    if (!metadata.contains(key)) return std::optional<TokenId>();
    TRY(const int64_t id, metadata.require_int(key, 0, size - 1));
    return std::optional(TokenId(static_cast<int32_t>(id)));
}

int64_t id_or_none(bool wanted, std::optional<TokenId> id) { return wanted && id ? raw(*id) : -1; }

// The name of an end token in any vocabulary we know of.
constexpr std::string_view kEndNames[] = {
    "<|im_end|>",      "<|endoftext|>", "<|eot_id|>",    "<|eom_id|>", "<|end|>",
    "<|end_of_text|>", "<|return|>",    "<end_of_turn>", "<eos>",      "</s>",
    "<|fim_pad|>",     "<|repo_name|>", "<|file_sep|>",  "[e~[",       "<|call|>",
};

}  // namespace

void Tokenizer::add_end_names() {
    for (std::string_view name : kEndNames) {
        const std::optional<TokenId> id = find(name);
        const bool added = id && (kind(*id) == TokenKind::control || kind(*id) == TokenKind::user_defined);
        if (added) end_tokens_.push_back(*id);
    }
}

void Tokenizer::finish_end_tokens() {
    std::sort(end_tokens_.begin(), end_tokens_.end());
    end_tokens_.erase(std::unique(end_tokens_.begin(), end_tokens_.end()), end_tokens_.end());
}

Result<Tokenizer> Tokenizer::from_metadata(const Metadata& metadata) {
    if (metadata.contains("tokenizer.ggml.model")) return from_gguf(metadata);
    if (metadata.contains("tokenizer.json")) return from_folder(metadata);
    return bad_input(
        "{}: no tokenizer, expected the metadata key 'tokenizer.ggml.model' or a file tokenizer.json",
        metadata.source());
}

Result<Tokenizer> Tokenizer::from_gguf(const Metadata& metadata) {
    TRY(const std::string model, metadata.require_string("tokenizer.ggml.model"));
    if (model != "gpt2")
        return bad_input("{}: tokenizer.ggml.model is '{}', expected gpt2 (byte-level BPE)",
                         metadata.source(), model);
    TRY(const std::string pre, metadata.require_string("tokenizer.ggml.pre"));
    TRY(const auto* tokens, metadata.strings("tokenizer.ggml.tokens"));
    TRY(const auto* merges, metadata.strings("tokenizer.ggml.merges"));
    if (!tokens || tokens->empty() || !merges)
        return bad_input("{}: tokenizer.ggml.{} is missing or empty", metadata.source(),
                         merges ? "tokens" : "merges");
    const auto count = static_cast<int64_t>(tokens->size());
    TRY(const std::vector<uint8_t> types, token_types(metadata, tokens->size()));
    if (types.size() != tokens->size())
        return bad_input(
            "{}: tokenizer.ggml.token_type has {} entries, expected one for each of the {} tokens",
            metadata.source(), types.size(), tokens->size());
    TRY(const auto bos, token_id(metadata, "tokenizer.ggml.bos_token_id", count));
    TRY(const auto eos, token_id(metadata, "tokenizer.ggml.eos_token_id", count));
    TRY(const auto eot, token_id(metadata, "tokenizer.ggml.eot_token_id", count));
    TRY(const auto eom, token_id(metadata, "tokenizer.ggml.eom_token_id", count));
    const bool llama_bpe = pre == "llama-bpe";
    TRY(const bool add_bos, metadata.bool_or("tokenizer.ggml.add_bos_token", llama_bpe));
    TRY(const bool add_eos, metadata.bool_or("tokenizer.ggml.add_eos_token", false));
    if ((add_bos && !bos) || (add_eos && !eos))
        return bad_input("{}: tokenizer.ggml.add_{}_token is true, but tokenizer.ggml.{}_token_id is missing",
                         metadata.source(), add_bos && !bos ? "bos" : "eos", add_bos && !bos ? "bos" : "eos");

    const std::vector<ffi::Str> token_views = views(*tokens);
    const std::vector<ffi::Str> merge_views = views(*merges);
    const ffi::GgufInput input{.pre = ffi::str(pre),
                               .tokens = token_views.data(),
                               .types = types.data(),
                               .tokens_count = token_views.size(),
                               .merges = merge_views.data(),
                               .merges_count = merge_views.size(),
                               .ignore_merges = llama_bpe,
                               .bos = id_or_none(add_bos, bos),
                               .eos = id_or_none(add_eos, eos)};
    ffi::Tokenizer* rust = nullptr;
    ffi::Bytes error;
    if (int code = ffi::si_tokenizer_from_gguf(&input, &rust, &error))
        return ffi::take_error(code, error, metadata.source());
    Tokenizer tokenizer(std::make_unique<Handle>(rust), metadata.source());
    tokenizer.bos_ = bos;
    tokenizer.eos_ = eos;
    for (const auto& id : {eos, eot, eom})
        if (id) tokenizer.end_tokens_.push_back(*id);
    tokenizer.add_end_names();
    tokenizer.finish_end_tokens();
    return tokenizer;
}

Result<Tokenizer> Tokenizer::from_folder(const Metadata& metadata) {
    TRY(const std::string json, metadata.require_string("tokenizer.json"));
    TRY(const std::string config, metadata.string_or("tokenizer_config.json", ""));
    TRY(const std::string generation, metadata.string_or("generation_config.json", ""));
    ffi::Tokenizer* rust = nullptr;
    ffi::Bytes error;
    if (int code = ffi::si_tokenizer_from_json(ffi::str(json), &rust, &error))
        return ffi::take_error(code, error, metadata.source());
    Tokenizer tokenizer(std::make_unique<Handle>(rust), metadata.source());
    TRY(const SpecialTexts specials, special_texts(config, metadata.source()));
    if (auto it = specials.find("bos_token"); it != specials.end())
        tokenizer.bos_ = tokenizer.find(it->second);
    if (auto it = specials.find("eos_token"); it != specials.end())
        tokenizer.eos_ = tokenizer.find(it->second);
    if (tokenizer.eos_) tokenizer.end_tokens_.push_back(*tokenizer.eos_);
    TRY(std::vector<int64_t> ids, eos_ids(generation, metadata.source()));
    for (const char* key : {"config.eos_token_id", "config.text_config.eos_token_id"}) {
        const MetadataValue* stated = metadata.find(key);
        if (!stated) continue;
        if (const auto* list = std::get_if<std::vector<int64_t>>(stated)) {
            ids.insert(ids.end(), list->begin(), list->end());
        } else {
            TRY(const int64_t id, metadata.require_int(key, INT64_MIN, INT64_MAX));
            ids.push_back(id);
        }
    }
    for (int64_t id : ids) {
        if (id < 0 || id >= tokenizer.size_)
            return bad_input(
                "{}: eos_token_id (config.json, generation_config.json): {} is out of range, "
                "expected 0 to {}",
                metadata.source(), id, tokenizer.size_ - 1);
        tokenizer.end_tokens_.push_back(TokenId(static_cast<int32_t>(id)));
    }
    tokenizer.add_end_names();
    tokenizer.finish_end_tokens();
    return tokenizer;
}

Result<std::vector<TokenId>> Tokenizer::encode_with(std::string_view text, int control,
                                                    std::span<const ByteRange> guarded,
                                                    bool add_special) const {
    ffi::Ids ids;
    ffi::Bytes error;
    if (int code = ffi::si_tokenizer_encode(handle_->rust, ffi::str(text), control, guarded.data(),
                                            guarded.size(), add_special, &ids, &error))
        return ffi::take_error(code, error, "");
    std::vector<TokenId> out;
    out.reserve(ids.size);
    for (size_t i = 0; i < ids.size; ++i) out.push_back(TokenId(static_cast<int32_t>(ids.data[i])));
    ffi::si_text_free_ids(ids);
    return out;
}

Result<std::vector<TokenId>> Tokenizer::encode(std::string_view text, Specials specials,
                                               bool add_special) const {
    return encode_with(text, specials == Specials::parse ? 1 : 0, {}, add_special);
}

Result<std::vector<TokenId>> Tokenizer::encode(const Rendered& chat) const {
    return encode_with(chat.text, 2, chat.guarded, false);
}

std::string Tokenizer::decode(std::span<const TokenId> ids, bool keep_control) const {
    Utf8Buffer buffer;
    std::string out;
    for (TokenId id : ids)
        if (keep_control || kind(id) != TokenKind::control) buffer.push(piece(id), out);
    buffer.finish(out);
    return out;
}

std::string_view Tokenizer::piece(TokenId id) const {
    if (!contains(id)) return {};
    const ffi::Table& table = handle_->table;
    const auto i = static_cast<size_t>(raw(id));
    return {table.pieces + table.offsets[i], static_cast<size_t>(table.offsets[i + 1] - table.offsets[i])};
}

TokenKind Tokenizer::kind(TokenId id) const {
    if (!contains(id)) return TokenKind::unused;
    return static_cast<TokenKind>(handle_->table.kinds[static_cast<size_t>(raw(id))]);
}

std::optional<TokenId> Tokenizer::find(std::string_view text) const {
    const int64_t id = ffi::si_tokenizer_find(handle_->rust, ffi::str(text));
    if (id < 0) return std::nullopt;
    return TokenId(static_cast<int32_t>(id));
}

}  // namespace sparkinfer
