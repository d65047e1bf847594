#include "server/openai_params.h"

#include <charconv>
#include <cmath>
#include <cstdlib>

#include "server/api.h"

namespace sparkinfer {
namespace {

// The first of several spellings that is there; its value is what counts.
struct Spelling {
    std::string_view key;
    bool found;
};
Spelling spelled(const Fields& body, std::initializer_list<std::string_view> keys) {
    for (const std::string_view key : keys)
        if (body.has(key)) return {key, true};
    return {*keys.begin(), false};
}

ApiResult<void> parse_sampling(const Fields& body, AnswerParams* p) {
    TRY(p->temperature, body.number("temperature", {0, 2}));
    TRY(p->top_p, body.number("top_p", {0, 1}));
    if (p->top_p && *p->top_p == 0) p->top_p = 1e-6;  // keeps the best token alone, as 0 says
    TRY(p->min_p, body.number("min_p", {0, 1}));
    TRY(p->top_k, body.integer("top_k", {-1, INT32_MAX}));
    if (p->top_k && *p->top_k < 0) p->top_k = 0;  // both mean: off
    const auto repeat = spelled(body, {"repetition_penalty", "repeat_penalty"});
    TRY(p->repeat_penalty, body.number(repeat.key, {0, 10, true}));
    TRY(p->repeat_last_n, body.integer("repeat_last_n", {-1, INT32_MAX}));
    // vLLM's repetition_penalty looks at the whole text, llama.cpp's repeat_penalty at the end of it.
    if (repeat.key == "repetition_penalty" && repeat.found && !p->repeat_last_n) p->repeat_last_n = -1;
    TRY(p->presence_penalty, body.number("presence_penalty", {-2, 2}));
    TRY(p->frequency_penalty, body.number("frequency_penalty", {-2, 2}));
    return {};
}

ApiResult<void> parse_seed(const Fields& body, AnswerParams* p) {
    const Json* value = body.find("seed");
    if (!value) return {};
    if (const uint64_t* u = value->if_uint64()) {
        p->seed = *u;
        return {};
    }
    TRY(const int64_t seed, int_value(*value, body.at("seed")));
    if (seed != -1) p->seed = uint64_t(seed);  // llama.cpp's -1: any
    return {};
}

ApiResult<void> parse_logit_bias(const Fields& body, AnswerParams* p) {
    TRY(const std::optional<Fields> bias, body.fields("logit_bias"));
    if (!bias) return {};
    for (const auto& [key, value] : bias->object()) {
        const std::string_view text(key.data(), key.size());
        int32_t id = 0;
        const auto [end, trouble] = std::from_chars(text.data(), text.data() + text.size(), id);
        if (trouble != std::errc() || end != text.data() + text.size() || id < 0)
            return bad_request(body.at("logit_bias"), "logit_bias has the key {}, expected the id of a token",
                               json_quote(text.substr(0, 100)));
        TRY(const double number, number_value(value, bias->at(text), {-100, 100}));
        p->logit_bias.emplace_back(id, number);
    }
    return {};
}

ApiResult<void> parse_stops(const Fields& body, AnswerParams* p) {
    TRY(p->stop, body.strings("stop"));
    if (int64_t(p->stop.size()) > kMaxStops)
        return bad_request(body.at("stop"), "stop has {} strings, expected at most {}", p->stop.size(),
                           kMaxStops);
    TRY(const JsonArray* ids, body.array("stop_token_ids"));
    for (size_t i = 0; ids && i < ids->size(); ++i) {
        TRY(const int64_t id, int_value((*ids)[i], item_path(body.at("stop_token_ids"), i), {0, INT32_MAX}));
        p->stop_token_ids.push_back(id);
    }
    TRY(const auto min_tokens, body.integer("min_tokens", {0, INT32_MAX}));
    p->min_tokens = min_tokens.value_or(0);
    TRY(const auto ignore_eos, body.boolean("ignore_eos"));
    p->ignore_eos = ignore_eos.value_or(false);
    return {};
}

// A JSON Schema: an object, true or false, or the text of one (vLLM's guided_json).
ApiResult<ResponseFormat> schema_format(const Json& value, std::string path) {
    ResponseFormat format{ResponseFormat::Kind::json_schema};
    format.schema = value;
    if (value.is_string()) {
        Result<Json> parsed = parse_json(std::string_view(value.get_string()), path);
        if (!parsed.ok()) return bad_request(path, "{}", parsed.error().message);
        format.schema = std::move(parsed).value();
    }
    if (!format.schema.is_object() && !format.schema.is_bool())
        return wrong_field(std::move(path), format.schema, "a JSON Schema, an object");
    return format;
}

ApiResult<ResponseFormat> pattern_format(ResponseFormat::Kind kind, const Json& value, std::string path) {
    ResponseFormat format{kind};
    TRY(format.pattern, string_value(value, path));
    if (format.pattern.empty()) return bad_request(path, "{} is empty", path);
    return format;
}

ApiResult<ResponseFormat> choice_format(const Fields& parent, std::string_view key) {
    ResponseFormat format{ResponseFormat::Kind::choice};
    TRY(format.choices, parent.strings(key));
    if (format.choices.empty())
        return bad_request(parent.at(key), "{} is empty, expected at least one string", parent.at(key));
    return format;
}

// One kind of constraint under one of its spellings; nullopt: not this key.
ApiResult<std::optional<ResponseFormat>> guided(const Fields& from, std::string_view key,
                                                std::string_view kind) {
    const Json* value = from.find(key);
    if (!value) return std::optional<ResponseFormat>();
    const std::string path = from.at(key);
    if (kind == "json") {
        TRY(ResponseFormat format, schema_format(*value, path));
        return std::optional(std::move(format));
    }
    if (kind == "choice") {
        TRY(ResponseFormat format, choice_format(from, key));
        return std::optional(std::move(format));
    }
    if (kind == "json_object") {
        TRY(const bool on, bool_value(*value, path));
        if (!on) return std::optional<ResponseFormat>();
        return std::optional(ResponseFormat{ResponseFormat::Kind::json_object});
    }
    const auto which = kind == "regex" ? ResponseFormat::Kind::regex : ResponseFormat::Kind::lark;
    TRY(ResponseFormat format, pattern_format(which, *value, path));
    return std::optional(std::move(format));
}

ApiResult<std::optional<ResponseFormat>> openai_format(const Fields& body) {
    TRY(const std::optional<Fields> f, body.fields("response_format"));
    if (!f) return std::optional<ResponseFormat>();
    TRY(const std::string type, f->required_string("type"));
    if (type == "text") return std::optional<ResponseFormat>();
    if (type == "json_object") {
        // llama.cpp has the schema here.
        if (!f->has("schema")) return std::optional(ResponseFormat{ResponseFormat::Kind::json_object});
        TRY(ResponseFormat format, schema_format(*f->find("schema"), f->at("schema")));
        return std::optional(std::move(format));
    }
    if (type != "json_schema")
        return f->unknown_value("type", type, "\"text\", \"json_object\" or \"json_schema\"");
    TRY(const Fields holder, f->required_fields("json_schema"));
    if (!holder.has("schema")) return missing_field(holder.at("schema"), "a JSON Schema, an object");
    TRY(ResponseFormat format, schema_format(*holder.find("schema"), holder.at("schema")));
    return std::optional(std::move(format));
}

}  // namespace

ApiResult<StreamOptions> parse_stream_options(const Fields& body) {
    StreamOptions o;
    TRY(const auto stream, body.boolean("stream"));
    o.stream = stream.value_or(false);
    TRY(const std::optional<Fields> options, body.fields("stream_options"));
    if (!options) return o;
    TRY(const auto usage, options->boolean("include_usage"));
    TRY(const auto continuous, options->boolean("continuous_usage_stats"));
    o.continuous_usage = continuous.value_or(false);
    o.include_usage = usage.value_or(false) || o.continuous_usage;
    return o;
}

ApiResult<AnswerParams> parse_answer_params(const Fields& body) {
    AnswerParams p;
    TRY_VOID(parse_sampling(body, &p));
    TRY_VOID(parse_seed(body, &p));
    TRY_VOID(parse_logit_bias(body, &p));
    TRY_VOID(parse_stops(body, &p));
    TRY(const auto n, body.integer("n", {1, kMaxChoices}));
    p.n = int32_t(n.value_or(1));
    return p;
}

ApiResult<ResponseFormat> parse_response_format(const Fields& body) {
    TRY(std::optional<ResponseFormat> found, openai_format(body));
    std::string by = "response_format";
    const auto add = [&](const Fields& from, std::string_view key, std::string_view kind) -> ApiResult<void> {
        TRY(std::optional<ResponseFormat> format, guided(from, key, kind));
        if (!format) return {};
        if (found)
            return bad_request(from.at(key), "{} and {} are given, expected one of them", by, from.at(key));
        found = std::move(format);
        by = from.at(key);
        return {};
    };
    TRY_VOID(add(body, "json_schema", "json"));  // llama.cpp
    TRY_VOID(add(body, "guided_json", "json"));
    TRY_VOID(add(body, "guided_regex", "regex"));
    TRY_VOID(add(body, "guided_choice", "choice"));
    TRY_VOID(add(body, "guided_grammar", "grammar"));
    TRY(const std::optional<Fields> outputs, body.fields("structured_outputs"));
    if (outputs) {
        for (const char* kind : {"json", "regex", "choice", "grammar", "json_object"})
            TRY_VOID(add(*outputs, kind, kind));
        if (outputs->has("structural_tag"))
            return bad_request(
                outputs->at("structural_tag"),
                "structured_outputs.structural_tag is not supported, expected json, regex, choice, "
                "grammar or json_object");
    }
    if (body.has("grammar"))
        return bad_request(
            body.at("grammar"),
            "grammar (GBNF) is not supported, expected json_schema, or guided_grammar in Lark syntax");
    return found ? std::move(*found) : ResponseFormat{};
}

ApiResult<std::string> parse_cache_salt(const Fields& body) {
    TRY(const auto cache, body.boolean("cache_prompt"));
    TRY(const auto salt, body.string("cache_salt"));
    if (!cache.value_or(true)) return make_id("uncached-");
    return salt.value_or("");
}

ApiResult<void> refuse_unsupported(const Fields& body) {
    for (const char* key : {"use_beam_search", "include_stop_str_in_output"}) {
        TRY(const auto on, body.boolean(key));
        if (on.value_or(false))
            return bad_request(body.at(key), "{} is true, expected false: it is not supported", key);
    }
    TRY(const JsonArray* modalities, body.array("modalities"));
    for (size_t i = 0; modalities && i < modalities->size(); ++i) {
        const std::string path = item_path("modalities", i);
        TRY(const std::string kind, string_value((*modalities)[i], path));
        if (kind != "text")
            return bad_request(path, "{} is {}, expected \"text\": answers are text only", path,
                               json_quote(kind.substr(0, 100)));
    }
    return {};
}

Json usage_json(const Usage& u) {
    return JsonObject{{"prompt_tokens", u.prompt_tokens},
                      {"completion_tokens", u.completion_tokens},
                      {"total_tokens", int64_t(u.prompt_tokens) + u.completion_tokens},
                      {"prompt_tokens_details", JsonObject{{"cached_tokens", u.cached_tokens}}},
                      {"completion_tokens_details", JsonObject{{"reasoning_tokens", u.reasoning_tokens}}}};
}

double clamp_logprob(float logprob) {
    if (!(logprob > -9999.0f)) return -9999.0;  // -inf and NaN too
    if (logprob > 0) return 0.0;                // a log-sum may round below the logit itself
    // The float's own shortest digits: 0.1f widened would print as 0.10000000149011612.
    return std::strtod(fmt::format("{}", logprob).c_str(), nullptr);
}

}  // namespace sparkinfer
