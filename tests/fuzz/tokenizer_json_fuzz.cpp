// tokenizer.json, and the two files beside it that say which of its tokens end an answer.
// Parts: tokenizer_config.json, generation_config.json, tokenizer.json.
#include "model_files.h"

using namespace sparkinfer;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    std::vector<std::string> parts = parts_of(text_of(data, size), 3);
    Metadata metadata("fuzz");
    metadata.insert("tokenizer.json", std::move(parts[2]));
    if (!parts[0].empty()) metadata.insert("tokenizer_config.json", std::move(parts[0]));
    if (!parts[1].empty()) metadata.insert("generation_config.json", std::move(parts[1]));
    const auto tokenizer = Tokenizer::from_metadata(metadata);
    if (tokenizer.ok())
        use_tokenizer(tokenizer.value());
    else
        check_error(tokenizer.error());
    return 0;
}
