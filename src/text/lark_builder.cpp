#include "text/lark_builder.h"

namespace sparkinfer {

std::string LarkBuilder::part(std::string_view kind, Json value) {
    const std::string name = fmt::format("p{}", parts_.size());
    parts_.push_back(JsonObject{{"name", name}, {kind, std::move(value)}});
    return fmt::format("@{}", name);
}

std::string LarkBuilder::schema(const Json& prepared) {
    const auto [known, fresh] = schemas_.try_emplace(to_json(prepared));
    if (fresh) known->second = part("json_schema", prepared);
    return known->second;
}

std::string LarkBuilder::regex(std::string_view pattern) { return part("regex", Json(pattern)); }

std::string LarkBuilder::lark(std::string_view text) { return part("lark", Json(text)); }

Grammar LarkBuilder::build() && {
    JsonArray all{JsonObject{{"name", "answer"}, {"lark", text_}}};
    for (Json& part : parts_) all.push_back(std::move(part));
    return {to_json(all)};
}

std::string LarkBuilder::literal(std::string_view text) {
    std::string out;
    for (const char c : text) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte < 0x20 || byte == 0x7F)
            out += fmt::format("\\x{:02X}", byte);
        else
            (std::string_view("\\.+*?()|[]{}^$/").find(c) == std::string_view::npos ? out : out += '\\') += c;
    }
    return out;
}

}  // namespace sparkinfer
