#include "server/endpoints.h"

#include <algorithm>

#include "server/errors.h"
#include "server/json_fields.h"
#include "server/openai.h"
#include "server/openai_chat.h"
#include "server/openapi.h"
#include "text/tokenizer.h"

namespace sparkinfer {
namespace {

// One entry of /v1/models: OpenAI's four fields, then the context under the names that vLLM, llama.cpp, LM
// Studio and the agents that ask them use.
JsonObject model_json(const ModelCard& card, const std::string& id) {
    const int32_t context = card.context;
    return {
        {"id", id},
        {"object", "model"},
        {"created", card.created},
        {"owned_by", "sparkinfer"},
        {"root", card.id},
        {"parent", nullptr},
        {"max_model_len", context},
        {"max_context_length", context},
        {"max_context_window", context},
        {"context_length", context},
        {"context_window", context},
        {"max_input_tokens", context},
        {"max_output_tokens", context},
        {"loaded_context_length", context},
        {"capabilities", JsonObject{{"tools", card.tools}, {"reasoning", card.reasoning}, {"vision", false}}},
        {"meta", JsonObject{{"n_ctx", context},
                            {"n_ctx_train", card.trained_context},
                            {"n_vocab", card.vocab},
                            {"vocab_type", 2}}}};
}

std::vector<std::string> model_names(const ModelCard& card) {
    std::vector<std::string> names{card.id};
    names.insert(names.end(), card.aliases.begin(), card.aliases.end());
    return names;
}

// A token's bytes: text where they are some, else the numbers.
Json piece_json(std::string_view bytes) {
    if (is_utf8(bytes)) return Json(bytes);
    JsonArray numbers;
    for (const char c : bytes) numbers.emplace_back(uint8_t(c));
    return numbers;
}

// What /tokenize asks for, as token ids.
ApiResult<std::vector<TokenId>> tokens_of(Service& service, const Fields& body) {
    if (body.has("messages")) {
        ChatRequest chat;
        TRY_VOID(parse_conversation(body, &chat));
        TRY(const std::shared_ptr<Prepared> prepared, service.prepare(chat));
        return prepared->prompt;
    }
    const std::string_view key = body.has("content") ? "content" : "prompt";
    if (!body.has(key))
        return missing_field("content", "a string there or in prompt, or an array of messages");
    TRY(const std::string text, body.required_string(key));
    // llama.cpp's spelling adds nothing around a text, vLLM's does.
    TRY(const auto add_llama, body.boolean("add_special"));
    TRY(const auto add_vllm, body.boolean("add_special_tokens"));
    TRY(const auto parse, body.boolean("parse_special"));
    const bool add = add_llama.value_or(add_vllm.value_or(key == "prompt"));
    const auto specials = parse.value_or(true) ? Tokenizer::Specials::parse : Tokenizer::Specials::none;
    Result<std::vector<TokenId>> ids = service.tokenizer().encode(text, specials, add);
    if (!ids.ok()) return bad_request(std::string(key), "{}", ids.error().message);
    return std::move(ids).value();
}

ApiResult<Json> tokenize_json(Service& service, const ApiOptions& options, const Fields& body) {
    TRY(const auto model, body.string("model"));
    TRY_VOID(check_model(service.card(), model.value_or(""), options));
    TRY(const auto with_pieces, body.boolean("with_pieces"));
    TRY(const auto with_strings, body.boolean("return_token_strs"));
    TRY(const std::vector<TokenId> ids, tokens_of(service, body));
    JsonArray tokens, strings;
    for (const TokenId id : ids) {
        const std::string_view piece = service.tokenizer().piece(id);
        if (with_pieces.value_or(false))
            tokens.push_back(JsonObject{{"id", raw(id)}, {"piece", piece_json(piece)}});
        else
            tokens.emplace_back(raw(id));
        if (with_strings.value_or(false)) strings.emplace_back(piece);
    }
    JsonObject answer{{"tokens", std::move(tokens)},
                      {"count", int64_t(ids.size())},
                      {"max_model_len", service.card().context}};
    if (with_strings.value_or(false)) answer["token_strs"] = std::move(strings);
    return Json(std::move(answer));
}

ApiResult<Json> detokenize_json(Service& service, const ApiOptions& options, const Fields& body) {
    TRY(const auto model, body.string("model"));
    TRY_VOID(check_model(service.card(), model.value_or(""), options));
    TRY(const JsonArray* tokens, body.required_array("tokens"));
    std::vector<TokenId> ids;
    for (size_t i = 0; i < tokens->size(); ++i) {
        const int64_t last = service.tokenizer().size() - 1;
        TRY(const int64_t id, int_value((*tokens)[i], item_path("tokens", i), {0, last}));
        ids.push_back(TokenId(int32_t(id)));
    }
    const std::string text = service.tokenizer().decode(ids, true);
    return Json(JsonObject{{"content", text}, {"prompt", text}});
}

ApiResult<Json> template_json(Service& service, const ApiOptions& options, const Fields& body) {
    ChatRequest chat;
    TRY_VOID(parse_conversation(body, &chat));
    TRY_VOID(check_model(service.card(), chat.model, options));
    TRY(std::string prompt, service.render(chat));
    return Json(JsonObject{{"prompt", std::move(prompt)}});
}

Json special_json(const Tokenizer& tokenizer, std::optional<TokenId> id) {
    return id ? Json(tokenizer.piece(*id)) : Json(nullptr);
}

Json props_json(Service& service) {
    const ModelCard& card = service.card();
    const Tokenizer& tokenizer = service.tokenizer();
    return JsonObject{
        {"default_generation_settings",
         JsonObject{{"id", 0}, {"n_ctx", card.context}, {"params", JsonObject{{"n_predict", -1}}}}},
        {"total_slots", card.slots},
        {"model_alias", card.id},
        {"model_path", card.id},  // a name: where the file lies is nobody's business
        {"modalities", JsonObject{{"vision", false}, {"audio", false}}},
        {"chat_template", card.chat_template},
        {"bos_token", special_json(tokenizer, tokenizer.bos())},
        {"eos_token", special_json(tokenizer, tokenizer.eos())},
        {"n_ctx", card.context},
        {"build_info", "sparkinfer"},
    };
}

Json tokenizer_json(Service& service) {
    const Tokenizer& tokenizer = service.tokenizer();
    const auto id_json = [](std::optional<TokenId> id) { return id ? Json(raw(*id)) : Json(nullptr); };
    return JsonObject{{"tokenizer_class", "sparkinfer"},
                      {"vocab_size", tokenizer.size()},
                      {"model_max_length", service.card().context},
                      {"bos_token", special_json(tokenizer, tokenizer.bos())},
                      {"eos_token", special_json(tokenizer, tokenizer.eos())},
                      {"pad_token", special_json(tokenizer, tokenizer.eos())},
                      {"bos_token_id", id_json(tokenizer.bos())},
                      {"eos_token_id", id_json(tokenizer.eos())},
                      {"chat_template", service.card().chat_template}};
}

void answer(const HttpRequest& request, Responder& responder, const ApiResult<Json>& result) {
    if (result.ok())
        send_json(responder, result.value());
    else
        send_error(responder, request, result.error());
}

// A POST whose body is an object and whose answer is known at once.
using BodyAnswer = ApiResult<Json> (*)(Service&, const ApiOptions&, const Fields&);
Handler post(Service& service, ApiOptions options, BodyAnswer say) {
    return [&service, options, say](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
        const auto result = [&]() -> ApiResult<Json> {
            TRY(const Json json, parse_body(request));
            TRY(const Fields body, Fields::of(json, ""));
            return say(service, options, body);
        };
        answer(request, *responder, result());
    };
}

Handler get(Service& service, Json (*say)(Service&)) {
    return [&service, say](const HttpRequest&, const std::shared_ptr<Responder>& responder) {
        send_json(*responder, say(service));
    };
}

Json models_json(Service& service) {
    JsonArray data;
    for (const std::string& name : model_names(service.card()))
        data.push_back(model_json(service.card(), name));
    return JsonObject{{"object", "list"}, {"data", std::move(data)}};
}

}  // namespace

Handler list_models(Service& service) { return get(service, models_json); }

Handler show_model(Service& service) {
    return [&service](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
        constexpr std::string_view kBefore = "/v1/models/";
        const std::string name = request.path.substr(std::min(kBefore.size(), request.path.size()));
        const ApiResult<void> known = check_model(service.card(), name, {});
        if (!known.ok()) return send_error(*responder, request, known.error());
        send_json(*responder, model_json(service.card(), name));
    };
}

Handler tokenize(Service& service, ApiOptions options) { return post(service, options, tokenize_json); }
Handler detokenize(Service& service, ApiOptions options) { return post(service, options, detokenize_json); }
Handler apply_template(Service& service, ApiOptions options) { return post(service, options, template_json); }
Handler props(Service& service) { return get(service, props_json); }
Handler tokenizer_info(Service& service) { return get(service, tokenizer_json); }

std::vector<Route> openai_routes(Service& service, const ApiOptions& options) {
    using Access = Route::Access;
    std::vector<Route> routes;
    const auto add = [&](const char* method, const char* path, Handler handler, Access access, bool light) {
        routes.push_back({method, path, access, std::move(handler), light});
    };
    add("POST", "/v1/chat/completions", chat_completions(service, options), Access::key, false);
    add("POST", "/v1/completions", completions(service, options), Access::key, false);
    for (const char* prefix : {"", "/v1"}) {
        const std::string base = prefix;
        add("POST", (base + "/tokenize").c_str(), tokenize(service, options), Access::key, false);
        add("POST", (base + "/detokenize").c_str(), detokenize(service, options), Access::key, false);
    }
    add("POST", "/apply-template", apply_template(service, options), Access::key, false);
    add("GET", "/v1/models", list_models(service), Access::key, true);
    add("GET", "/models", list_models(service), Access::key, true);
    add("GET", "/v1/models/{id}", show_model(service), Access::key, true);
    add("GET", "/props", props(service), Access::key, true);
    add("GET", "/tokenizer_info", tokenizer_info(service), Access::key, true);
    routes.push_back(openapi_route());
    return routes;
}

}  // namespace sparkinfer
