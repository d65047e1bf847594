// JSON of files and requests: what is read can be written and read again, and is then the same.
#include "fuzz.h"

using namespace sparkinfer;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::string_view text = text_of(data, size);
    for (const JsonLimits limits : {JsonLimits{}, JsonLimits{.depth = 4, .refuse_duplicate_keys = true}}) {
        const auto value = parse_json(text, "fuzz.json", limits);
        if (!value.ok()) {
            check_error(value.error());
            continue;
        }
        const std::string compact = to_json(value.value());
        CHECK(is_utf8(compact), "written JSON is not UTF-8");
        for (const std::string& written : {compact, to_json_pretty(value.value())}) {
            const auto again = parse_json(written, "written", limits);
            CHECK(again.ok(), "{}: {}", again.error().message, written);
            CHECK(to_json(again.value()) == compact, "{} became {}", compact, to_json(again.value()));
        }
    }
    const auto quoted = parse_json(json_quote(text), "quoted");
    CHECK(quoted.ok() && quoted.value().is_string(), "a quoted text is no string");
    const auto& string = quoted.value().get_string();
    CHECK(!is_utf8(text) || text == std::string_view(string.data(), string.size()), "quoting changed a text");
    return 0;
}
