// A chat template, and what a client sends for it. Parts: messages, tools, template variables (all JSON),
// template.
#include "model_files.h"

using namespace sparkinfer;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    const std::vector<std::string> parts = parts_of(text_of(data, size), 4);
    Metadata metadata("fuzz");
    metadata.insert("tokenizer.chat_template", parts[3]);
    metadata.insert("tokenizer.ggml.tokens", std::vector<std::string>{"<|im_start|>", "<|im_end|>", "a"});
    metadata.insert("tokenizer.ggml.token_type", std::vector<int64_t>{3, 3, 1});
    metadata.insert("tokenizer.ggml.bos_token_id", int64_t(0));
    const auto chat = ChatTemplate::from_metadata(metadata);
    if (!chat.ok()) {
        check_error(chat.error());
        return 0;
    }
    const RenderOptions options{.tools = parts[1], .kwargs = parts[2], .now = 0};
    const auto rendered = chat.value().render(parts[0], options);
    if (!rendered.ok()) {
        check_error(rendered.error());
        return 0;
    }
    // What came from messages lies in the text, in order, and is cut between characters.
    size_t last = 0;
    for (const ByteRange& range : rendered.value().guarded) {
        CHECK(range.begin >= last && range.begin < range.end && range.end <= rendered.value().text.size(),
              "{} to {} after {} of {}", range.begin, range.end, last, rendered.value().text.size());
        last = range.end;
    }
    CHECK(is_utf8(rendered.value().text), "the text of a template is not UTF-8");
    return 0;
}
