// text_probe.cpp — drives text handling from the golden tests: one JSON request a line on stdin, one JSON
// answer a line on stdout.
//
//     text_probe MODEL        MODEL: a GGUF, or a folder with tokenizer.json and what belongs to it
//     {"encode": "text", "specials": true, "add_special": false}       → {"ids": […]} or {"error": "…"}
//     {"decode": [ids], "keep_control": false}                         → {"text": "…", "streamed": "…"}
//     {"render": [messages], "tools": […], "kwargs": {…}, "add_generation_prompt": true, "now": 0}
//                                                                      → {"text": "…", "ids": […]}
//     {"facts": true}                                                  → {"size": …, "end_tokens": […],
//     "load_s": …}
#include <boost/json.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "load/gguf.h"
#include "text/chat_template.h"
#include "text/decoder.h"
#include "text/tokenizer.h"

namespace json = boost::json;
using namespace sparkinfer;

namespace {

Result<std::string> read_file(const std::filesystem::path& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) return bad_input("cannot read {}", path.string());
    return std::string(std::istreambuf_iterator<char>(in), {});
}

Result<Metadata> read_metadata(const std::string& path) {
    if (!std::filesystem::is_directory(path)) {
        TRY(const std::string bytes, read_file(path));
        TRY(GgufContents contents, parse_gguf(std::as_bytes(std::span(bytes)), path));
        return std::move(contents.metadata);
    }
    Metadata metadata(path);
    for (const char* name :
         {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "chat_template.jinja"}) {
        const std::filesystem::path file = std::filesystem::path(path) / name;
        if (!std::filesystem::exists(file)) continue;
        TRY(std::string text, read_file(file));
        metadata.insert(name, std::move(text));
    }
    return metadata;
}

json::array to_json(const std::vector<TokenId>& ids) {
    json::array out;
    for (TokenId id : ids) out.push_back(raw(id));
    return out;
}

bool flag(const json::object& request, const char* key, bool fallback) {
    const json::value* value = request.if_contains(key);
    return value ? value->as_bool() : fallback;
}

std::string text_of(const json::object& request, const char* key) {
    const json::value* value = request.if_contains(key);
    return value ? json::serialize(*value) : std::string();
}

json::object failed(const Error& error) {
    return {{"error", error.message}, {"kind", static_cast<int>(error.kind)}};
}

json::object encode(const Tokenizer& tokenizer, const json::object& request) {
    const auto specials =
        flag(request, "specials", true) ? Tokenizer::Specials::parse : Tokenizer::Specials::none;
    const json::string& text = request.at("encode").as_string();
    const auto ids =
        tokenizer.encode({text.data(), text.size()}, specials, flag(request, "add_special", false));
    if (!ids.ok()) return failed(ids.error());
    return {{"ids", to_json(ids.value())}};
}

json::object decode(const Tokenizer& tokenizer, const json::object& request) {
    std::vector<TokenId> ids;
    for (const json::value& id : request.at("decode").as_array())
        ids.push_back(TokenId(static_cast<int32_t>(id.as_int64())));
    const bool keep = flag(request, "keep_control", false);
    Decoder decoder(tokenizer, keep);
    std::string streamed;
    for (TokenId id : ids) streamed += decoder.push(id);
    streamed += decoder.finish();
    return {{"text", tokenizer.decode(ids, keep)}, {"streamed", streamed}};
}

json::object render(const Result<ChatTemplate>& chat, const Result<Tokenizer>& tokenizer,
                    const json::object& request) {
    if (!chat.ok()) return failed(chat.error());
    const std::string messages = text_of(request, "render");
    const std::string tools = text_of(request, "tools");
    const std::string kwargs = text_of(request, "kwargs");
    RenderOptions options{.tools = tools, .kwargs = kwargs};
    options.add_generation_prompt = flag(request, "add_generation_prompt", true);
    if (const json::value* now = request.if_contains("now")) options.now = now->as_int64();
    const Result<Rendered> rendered = chat.value().render(messages, options);
    if (!rendered.ok()) return failed(rendered.error());
    json::object out{{"text", rendered.value().text}};
    if (!tokenizer.ok()) return out;
    const auto ids = tokenizer.value().encode(rendered.value());
    if (!ids.ok()) return failed(ids.error());
    out["ids"] = to_json(ids.value());
    return out;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) return 2;
    const auto start = std::chrono::steady_clock::now();
    const Result<Metadata> metadata = read_metadata(argv[1]);
    if (!metadata.ok()) {
        std::cerr << metadata.error().message << "\n";
        return 3;
    }
    const auto parsed = std::chrono::steady_clock::now();
    const Result<Tokenizer> tokenizer = Tokenizer::from_metadata(metadata.value());
    const std::chrono::duration<double> load = std::chrono::steady_clock::now() - parsed;
    const Result<ChatTemplate> chat = ChatTemplate::from_metadata(metadata.value());
    json::parse_options options;
    options.max_depth = 512;
    for (std::string line; std::getline(std::cin, line);) {
        const json::object request = json::parse(line, {}, options).as_object();
        json::object answer;
        if (request.contains("render")) {
            answer = render(chat, tokenizer, request);
        } else if (!tokenizer.ok()) {
            answer = failed(tokenizer.error());
        } else if (request.contains("encode")) {
            answer = encode(tokenizer.value(), request);
        } else if (request.contains("decode")) {
            answer = decode(tokenizer.value(), request);
        } else {
            answer = {{"size", tokenizer.value().size()},
                      {"end_tokens", to_json(tokenizer.value().end_tokens())},
                      {"read_s", std::chrono::duration<double>(parsed - start).count()},
                      {"load_s", load.count()}};
        }
        std::cout << json::serialize(answer) << "\n" << std::flush;
    }
    return 0;
}
