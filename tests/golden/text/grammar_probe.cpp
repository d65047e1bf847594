// grammar_probe.cpp — drives constrained decoding from the golden tests: one JSON request a line on stdin,
// one JSON answer a line on stdout.
//
//     grammar_probe MODEL.gguf
//     {"schema": …, "strict": true, "texts": ["…", …]}      which texts follow the schema
//         → {"accepted": [true, …], "notices": […], "prepare_ms": …, "compile_ms": …} or {"error": "…"}
//     {"shape": {…}, "seed": 1, "steps": 500, "hints": ["…"]}   a random answer; shape() below says what a
//     shape has
//         → {"text": "…", "ended": true, "broken": "", "content": "…", "calls": [["name", "arguments"], …],
//            "whole": true, "mask_us": […], "grammar_ms": …, "compile_ms": …, "notices": […]} or {"error":
//            "…"}
//       with "replay": "text" instead of seed, steps and hints: that answer; "ended" is then whether it is a
//       whole one
//     {"facts": true}                                        → {"size": …, "make_ms": …}
#include <fstream>
#include <iostream>
#include <iterator>

#include "core/json.h"
#include "load/gguf.h"
#include "text/answer_grammar.h"
#include "text/answer_splitter.h"
#include "text/test_grammar_walk.h"

using namespace sparkinfer;

namespace {

struct Timer {
    double start_us = cpu_us();
    double ms() const { return (cpu_us() - start_us) / 1e3; }
};

bool flag(const JsonObject& object, const char* key, bool fallback) {
    const Json* value = json_find(object, key);
    return value && value->is_bool() ? value->get_bool() : fallback;
}

std::string text(const JsonObject& object, const char* key, const char* fallback) {
    const Json* value = json_find(object, key);
    return value && value->is_string() ? std::string(value->get_string()) : fallback;
}

int64_t number(const JsonObject& object, const char* key, int64_t fallback) {
    const Json* value = json_find(object, key);
    return value && value->is_int64() ? value->get_int64() : fallback;
}

JsonArray strings(const std::vector<std::string>& texts) { return JsonArray(texts.begin(), texts.end()); }

struct Probe {
    Tokenizer tokenizer;
    GrammarCompiler compiler;
    double make_ms;
};

bool accepts(const Tokenizer& tokenizer, const GrammarMatcher& start, std::string_view text) {
    auto matcher = start.clone();
    auto ids = tokenizer.encode(text, Tokenizer::Specials::none, false);
    if (!matcher.ok() || !ids.ok()) return false;
    for (TokenId id : *ids)
        if (!matcher->advance(id)) return false;
    return matcher->accepting();
}

Result<Json> check_texts(const Probe& probe, const JsonObject& request) {
    const Timer prepare;
    TRY(const auto prepared, probe.compiler.prepare(request.at("schema"), flag(request, "strict", true)));
    const double prepare_ms = prepare.ms();
    const Timer compile;
    TRY(const GrammarMatcher start, probe.compiler.compile(Grammar::json_schema(to_json(prepared->schema))));
    const double compile_ms = compile.ms();
    JsonArray accepted;
    for (const Json& text : request.at("texts").get_array())
        accepted.push_back(accepts(probe.tokenizer, start, text.get_string()));
    return Json(JsonObject{{"accepted", accepted},
                           {"notices", strings(prepared->notices)},
                           {"prepare_ms", prepare_ms},
                           {"compile_ms", compile_ms}});
}

// {"format": "qwen_xml", "reasoning": true, "inside": false, "tools": [{"name", "parameters", "strict"}, …],
//  "choice": "auto" | "none" | "required" | a tool's name, "parallel": true, "schema": …, "strict": false}
AnswerShape shape_of(const JsonObject& shape, std::vector<ToolSpec>& tools) {
    AnswerShape out;
    const std::string format = text(shape, "format", "none"), choice = text(shape, "choice", "auto");
    for (ToolFormat known : {ToolFormat::hermes_json, ToolFormat::qwen_xml})
        if (format == tool_format_name(known)) out.format.tools = known;
    out.format.think_open = "<think>";
    out.format.think_close = "</think>";
    out.format.reasoning = flag(shape, "reasoning", false);
    out.starts_in_reasoning = flag(shape, "inside", false);
    out.parallel_calls = flag(shape, "parallel", true);
    if (const Json* given = json_find(shape, "tools"))
        for (const Json& tool : given->get_array())
            tools.push_back({.name = text(tool.get_object(), "name", ""),
                             .parameters = tool.get_object().at("parameters"),
                             .strict = flag(tool.get_object(), "strict", false)});
    out.tools = tools;
    out.tool_choice.kind = choice == "auto"       ? ToolChoice::Kind::automatic
                           : choice == "none"     ? ToolChoice::Kind::none
                           : choice == "required" ? ToolChoice::Kind::required
                                                  : ToolChoice::Kind::named;
    out.tool_choice.name = choice;
    if (const Json* schema = json_find(shape, "schema")) {
        out.content = AnswerShape::Content::json_schema;
        out.schema = *schema;
        out.strict = flag(shape, "strict", false);
    }
    return out;
}

// A given answer instead of a random one.
Walk replay(const Tokenizer& tokenizer, GrammarMatcher& matcher, std::string_view text) {
    Walk walk;
    walk.text = text;
    auto ids = tokenizer.encode(text, Tokenizer::Specials::none, false);
    if (!ids.ok()) return walk;
    for (TokenId id : *ids) {
        const double start_us = cpu_us();
        const auto bits = mask_of(matcher, tokenizer);
        walk.mask_us.push_back(cpu_us() - start_us);
        if (allowed(bits, raw(id)) != matcher.advance(id)) walk.broken = "the mask and advance() differ";
    }
    walk.ended = matcher.accepting();
    return walk;
}

Result<Json> random_answer(const Probe& probe, const JsonObject& request) {
    std::vector<ToolSpec> tools;
    const AnswerShape shape = shape_of(request.at("shape").get_object(), tools);
    const Timer grammar_timer;
    TRY(const AnswerGrammar grammar, answer_grammar(shape, probe.compiler));
    const double grammar_ms = grammar_timer.ms();
    if (!grammar.grammar) return bad_input("nothing is constrained");
    const Timer compile_timer;
    TRY(GrammarMatcher matcher, probe.compiler.compile(*grammar.grammar));
    const double compile_ms = compile_timer.ms();
    std::vector<std::string> hints;
    if (const Json* given = json_find(request, "hints"))
        for (const Json& hint : given->get_array()) hints.emplace_back(hint.get_string());
    Walker walker(probe.tokenizer, static_cast<uint32_t>(number(request, "seed", 1)), hints);
    const Json* replayed = json_find(request, "replay");
    const Walk walk = replayed ? replay(probe.tokenizer, matcher, replayed->get_string())
                               : walker.run(matcher, static_cast<int>(number(request, "steps", 500)));

    AnswerSplitter splitter(shape.format, tools, shape.starts_in_reasoning);
    std::vector<AnswerPart> parts;
    splitter.push(walk.text, parts);
    splitter.finish(parts);
    std::string content;
    JsonArray calls;
    bool whole = true;
    for (const AnswerPart& part : parts) {
        if (part.kind == AnswerPart::Kind::content) content += part.text;
        if (part.kind == AnswerPart::Kind::call_started) calls.push_back(JsonArray{part.text, ""});
        if (part.kind == AnswerPart::Kind::call_arguments)
            calls.back().get_array()[1] = std::string(calls.back().get_array()[1].get_string()) + part.text;
        if (part.kind == AnswerPart::Kind::call_finished) whole &= part.whole;
    }
    return Json(JsonObject{{"text", walk.text},
                           {"ended", walk.ended},
                           {"broken", walk.broken},
                           {"content", content},
                           {"calls", calls},
                           {"whole", whole},
                           {"mask_us", JsonArray(walk.mask_us.begin(), walk.mask_us.end())},
                           {"grammar_ms", grammar_ms},
                           {"compile_ms", compile_ms},
                           {"notices", strings(grammar.notices)}});
}

Result<Json> answer(const Probe& probe, const Json& request) {
    TRY(const JsonObject* object, json_object(request, "the request"));
    if (object->contains("schema")) return check_texts(probe, *object);
    if (object->contains("shape")) return random_answer(probe, *object);
    return Json(JsonObject{{"size", probe.tokenizer.size()}, {"make_ms", probe.make_ms}});
}

Result<Probe> open(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    const std::string bytes(std::istreambuf_iterator<char>(in), {});
    TRY(GgufContents contents, parse_gguf(std::as_bytes(std::span(bytes)), path));
    TRY(Tokenizer tokenizer, Tokenizer::from_metadata(contents.metadata));
    const Timer timer;
    TRY(GrammarCompiler compiler, GrammarCompiler::make(tokenizer));
    return Probe{std::move(tokenizer), std::move(compiler), timer.ms()};
}

}  // namespace

int main(int argc, char** argv) {
    auto probe = open(argc > 1 ? argv[1] : "");
    if (!probe.ok()) {
        std::cerr << probe.error().message << "\n";
        return 1;
    }
    for (std::string line; std::getline(std::cin, line);) {
        auto request = parse_json(line, "the request", {.depth = 200});
        const Result<Json> out = request.ok() ? answer(*probe, *request) : Result<Json>(request.error());
        std::cout << to_json(out.ok() ? out.value() : Json(JsonObject{{"error", out.error().message}}))
                  << "\n";
    }
}
