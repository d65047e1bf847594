#include "server/api.h"

#include <chrono>
#include <random>

namespace sparkinfer {
ApiResult<Json> parse_body(const HttpRequest& request) {
    if (request.body.empty()) return bad_request("", "the body is empty, expected a JSON object");
    Result<Json> json = parse_json(request.body, "the body");
    if (json.ok()) return std::move(json).value();
    if (json.error().kind == ErrorKind::resources)
        return ApiError{503, "overloaded", "", json.error().message, 1};
    return bad_request("", "{}", json.error().message);
}

ApiResult<void> check_model(const ModelCard& card, std::string_view name, const ApiOptions& options) {
    if (options.any_model || name.empty() || name == card.id || name == kAnyModel) return {};
    std::string names = json_quote(card.id);
    for (const std::string& alias : card.aliases) {
        if (alias == name) return {};
        names += ", " + json_quote(alias);
    }
    return ApiError{
        404, "model_not_found", "model",
        fmt::format("The model {} does not exist; there is {}", json_quote(name.substr(0, 200)), names)};
}

std::string make_id(std::string_view prefix) {
    std::random_device random;  // the kernel's generator: no seed to guess
    std::string id(prefix);
    for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", uint32_t(random()));
    return id;
}

int64_t unix_now() {
    const auto since = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::seconds>(since).count();
}

std::string system_fingerprint(const ModelCard& card) {
    uint64_t hash = 0xcbf29ce484222325;  // FNV-1a
    for (const char c : fmt::format("{} {} {} {}", card.id, card.context, card.vocab, card.chat_template))
        hash = (hash ^ uint8_t(c)) * 0x100000001b3;
    return fmt::format("fp_{:010x}", hash & 0xffffffffff);
}

void send_json(Responder& responder, const Json& value, int status) {
    responder.send(status, "application/json", to_json(value));
}

}  // namespace sparkinfer
