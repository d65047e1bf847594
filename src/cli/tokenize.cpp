// tokenize.cpp — `sparkinfer tokenize`: text to ids and back, by the model's own tokenizer.
#include "cli/commands.h"
#include "cli/model_facts.h"
#include "core/json.h"
#include "text/decoder.h"

namespace sparkinfer {

namespace {

std::string piece_text(const Tokenizer& tokenizer, TokenId id) {
    std::string text;
    Utf8Buffer characters;
    characters.push(tokenizer.piece(id), text);
    characters.finish(text);
    return text;
}

JsonArray ids_json(const std::vector<TokenId>& ids) {
    JsonArray array;
    for (const TokenId id : ids) array.emplace_back(raw(id));
    return array;
}

Result<int> decode(const TokenizeOptions& o, const Tokenizer& tokenizer, StandardOutput& out) {
    std::vector<TokenId> ids;
    for (const int32_t id : *o.decode) {
        if (!tokenizer.contains(TokenId(id)))
            return bad_input("--decode: id {} is outside of the vocabulary, expected 0 to {}", id,
                             tokenizer.size() - 1);
        ids.push_back(TokenId(id));
    }
    const std::string text = tokenizer.decode(ids, !o.no_special);
    if (!o.json) {
        TRY_VOID(out.write(text + "\n"));
        return 0;
    }
    JsonObject object;
    object["token_ids"] = ids_json(ids);
    object["text"] = text;
    TRY_VOID(out.write(to_json(object) + "\n"));
    return 0;
}

}  // namespace

Result<int> run_command(const TokenizeOptions& o, Session& session) {
    TRY(const Metadata metadata, model_metadata(o.model));
    TRY(const Tokenizer tokenizer, Tokenizer::from_metadata(metadata));
    if (o.decode) return decode(o, tokenizer, session.out);
    TRY(const std::string text, read_text({o.text, {}}, "the text"));
    const auto specials = o.no_special ? Tokenizer::Specials::none : Tokenizer::Specials::parse;
    TRY(const std::vector<TokenId> ids, tokenizer.encode(text, specials, !o.no_special));
    std::string printed;
    if (o.json) {
        JsonArray tokens;
        for (const TokenId id : ids) tokens.emplace_back(piece_text(tokenizer, id));
        JsonObject object;
        object["token_ids"] = ids_json(ids);
        object["tokens"] = std::move(tokens);
        printed = to_json(object) + "\n";
    } else {
        for (const TokenId id : ids)
            printed += fmt::format("{:>8}  {}\n", raw(id), json_quote(piece_text(tokenizer, id)));
    }
    TRY_VOID(session.out.write(printed));
    return 0;
}

}  // namespace sparkinfer
