#include "cli/compare.h"

#include "cli/process.h"
#include "core/json.h"

namespace sparkinfer {

namespace {

std::string text_or_empty(const JsonObject& object, const char* key) {
    const Json* found = json_find(object, key);
    return found && found->is_string() ? std::string(found->get_string()) : "";
}

// The last line that says something.
std::string last_line(const std::string& text) {
    const size_t end = text.find_last_not_of(" \r\n");
    if (end == std::string::npos) return "nothing on stderr";
    const size_t start = text.find_last_of('\n', end);
    return text.substr(start == std::string::npos ? 0 : start + 1, end - (start + 1) + 1);
}

}  // namespace

std::vector<std::string> peer_command(const PeerTest& test) {
    std::vector<std::string> words = {test.program,
                                      "-m",
                                      test.model,
                                      "-p",
                                      std::to_string(test.n_prompt),
                                      "-n",
                                      std::to_string(test.n_gen)};
    if (test.n_depth > 0) words.insert(words.end(), {"-d", std::to_string(test.n_depth)});
    words.insert(words.end(), {"-t", std::to_string(test.threads), "-ngl", test.gpu ? "99" : "0", "-r", "1",
                               "-o", "json"});
    return words;
}

Result<PeerResult> parse_peer(const std::string& json, const PeerTest& test) {
    TRY(const Json answer, parse_json(json, test.program));
    TRY(const JsonArray* rows, json_array(answer, test.program, "its output"));
    if (rows->size() != 1)
        return bad_input("{}: answered with {} results, expected the one of the test that was asked for",
                         test.program, rows->size());
    TRY(const JsonObject* row, json_object(rows->front(), test.program, "its result"));
    const std::pair<const char*, int64_t> asked[] = {{"n_prompt", test.n_prompt}, {"n_gen", test.n_gen}};
    for (const auto& [key, expected] : asked) {
        TRY(const int64_t found, json_int(*row, key, test.program));
        if (found != expected)
            return bad_input("{}: its result has {} {}, expected {}", test.program, key, found, expected);
    }
    if (test.n_depth > 0) {
        TRY(const int64_t depth, json_int(*row, "n_depth", test.program));
        if (depth != test.n_depth)
            return bad_input("{}: its result has n_depth {}, expected {}", test.program, depth, test.n_depth);
    }
    PeerResult result;
    TRY(result.tokens_per_s, json_number(*row, "avg_ts", test.program));
    if (!(result.tokens_per_s > 0))
        return bad_input("{}: its result has avg_ts {}, expected a number above 0", test.program,
                         result.tokens_per_s);
    result.backends = text_or_empty(*row, "backends");
    result.commit = text_or_empty(*row, "build_commit");
    result.type_k = text_or_empty(*row, "type_k");
    return result;
}

Result<PeerResult> run_peer(const PeerTest& test) {
    TRY(const ProcessOutput done, run_process(peer_command(test)));
    if (done.code != 0)
        return bad_input("{}: ended with exit code {}: {}", test.program, done.code, last_line(done.err));
    return parse_peer(done.out, test);
}

}  // namespace sparkinfer
