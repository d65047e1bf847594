// text_test_vocabulary.h — a small byte-level vocabulary as GGUF metadata, for the tests of this folder.
#pragma once
#include <string>
#include <vector>

#include "core/metadata.h"

namespace sparkinfer {

// GPT-2's printable character for a byte, as UTF-8.
inline std::string byte_char(unsigned char byte) {
    int code = 0;
    const auto plain = [](int b) { return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || b >= 174; };
    if (plain(byte)) {
        code = byte;
    } else {
        code = 256;
        for (int b = 0; b < byte; ++b) code += plain(b) ? 0 : 1;
    }
    if (code < 0x80) return std::string(1, static_cast<char>(code));
    return {static_cast<char>(0xC0 | (code >> 6)), static_cast<char>(0x80 | (code & 0x3F))};
}

struct TestVocabulary {
    std::string pre = "smollm";
    std::vector<std::string> tokens;  // 0..255 are the bytes
    std::vector<int64_t> types;
    std::vector<std::string> merges;

    TestVocabulary() {
        for (int b = 0; b < 256; ++b) add(byte_char(static_cast<unsigned char>(b)), 1);
        for (const char* merge : {"h e", "l l", "he ll", "hell o", "Ġ w", "1 2", "12 3", "a a", "aa aa"}) {
            merges.emplace_back(merge);
            std::string joined = merge;
            joined.erase(joined.find(' '), 1);
            add(joined, 1);
        }
        for (const char* control : {"<|im_start|>", "<|im_end|>", "<|endoftext|>"}) add(control, 3);
        add("<think>", 4);
        add("</think>", 4);
        add("[PAD0]", 5);
    }

    void add(std::string token, int64_t type) {
        tokens.push_back(std::move(token));
        types.push_back(type);
    }
    int32_t id(const std::string& token) const {
        for (size_t i = 0; i < tokens.size(); ++i)
            if (tokens[i] == token) return static_cast<int32_t>(i);
        return -1;
    }
    Metadata metadata(const std::string& chat_template = "") const {
        Metadata m("test.gguf");
        m.insert("tokenizer.ggml.model", std::string("gpt2"));
        m.insert("tokenizer.ggml.pre", pre);
        m.insert("tokenizer.ggml.tokens", tokens);
        m.insert("tokenizer.ggml.token_type", types);
        m.insert("tokenizer.ggml.merges", merges);
        m.insert("tokenizer.ggml.bos_token_id", int64_t{id("<|im_start|>")});
        m.insert("tokenizer.ggml.eos_token_id", int64_t{id("<|im_end|>")});
        if (!chat_template.empty()) m.insert("tokenizer.chat_template", chat_template);
        return m;
    }
};

}  // namespace sparkinfer
