// A folder's JSON files beside tokenizer.json: what they say about special tokens, end tokens and the
// template.
#include "text/json_facts.h"

#include <gtest/gtest.h>

#include "text/chat_template.h"
#include "text/text_test_vocabulary.h"
#include "text/tokenizer.h"

namespace sparkinfer {
namespace {

// A byte-level tokenizer.json with three control tokens and one user-defined token, and the files beside it.
Metadata folder(const std::string& config, const std::string& generation) {
    std::string vocab;
    for (int b = 0; b < 256; ++b) {
        const std::string c = byte_char(static_cast<unsigned char>(b));
        vocab += (b ? ",\"" : "\"") + (c == "\"" || c == "\\" ? "\\" + c : c) + "\":" + std::to_string(b);
    }
    const std::string bytes =
        R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":true})";
    Metadata m("folder");
    m.insert("tokenizer.json", R"({"model":{"type":"BPE","merges":[],"vocab":{)" + vocab +
                                   R"(}},"normalizer":null,"pre_tokenizer":)" + bytes + R"(,"decoder":)" +
                                   bytes + R"(,"post_processor":null,"added_tokens":[
                 {"id":256,"content":"<s>","special":true},{"id":257,"content":"<stop>","special":true},
                 {"id":258,"content":"<eos>","special":true},{"id":260,"content":"<think>","special":false}]})");
    if (!config.empty()) m.insert("tokenizer_config.json", config);
    if (!generation.empty()) m.insert("generation_config.json", generation);
    return m;
}

TEST(JsonFacts, EndTokensOfAFolder) {
    // Risk: generation does not stop at an end token that only one of the files names.
    const auto ends = [](const Metadata& m) {
        const Result<Tokenizer> t = Tokenizer::from_metadata(m);
        EXPECT_TRUE(t.ok()) << (t.ok() ? "" : t.error().message);
        std::vector<int32_t> out;
        if (t.ok())
            for (TokenId id : t.value().end_tokens()) out.push_back(raw(id));
        return out;
    };
    EXPECT_EQ(ends(folder("", "")), std::vector{258});  // by its name
    EXPECT_EQ(ends(folder(R"({"eos_token":"<stop>"})", "")), (std::vector{257, 258}));
    EXPECT_EQ(ends(folder(R"({"eos_token":{"content":"<stop>"}})", R"({"eos_token_id":[256,257]})")),
              (std::vector{256, 257, 258}));
    EXPECT_EQ(ends(folder("", R"({"eos_token_id":10})")), (std::vector{10, 258}));
    Metadata stated = folder("", "");
    stated.insert("config.eos_token_id", std::vector<int64_t>{11, 12});
    stated.insert("config.text_config.eos_token_id", int64_t(13));
    EXPECT_EQ(ends(stated), (std::vector{11, 12, 13, 258}));
}

TEST(JsonFacts, KindsOfAFolder) {
    // Risk: ids that the file skips are read out of bounds; user-defined tokens vanish from answers.
    const Tokenizer t = Tokenizer::from_metadata(folder("", "")).value();
    EXPECT_EQ(t.size(), 261);
    EXPECT_EQ(t.kind(TokenId(259)), TokenKind::unused);
    EXPECT_EQ(t.piece(TokenId(259)), "");
    EXPECT_EQ(t.kind(TokenId(257)), TokenKind::control);
    EXPECT_EQ(t.kind(TokenId(260)), TokenKind::user_defined);
}

TEST(JsonFacts, RefusesBrokenFiles) {
    // Risk: a broken side file is ignored, and the model answers without its end token.
    const auto error = [](const std::string& config, const std::string& generation) {
        const Result<Tokenizer> t = Tokenizer::from_metadata(folder(config, generation));
        return t.ok() ? std::string() : t.error().message;
    };
    EXPECT_NE(error("{", "").find("folder/tokenizer_config.json"), std::string::npos);
    EXPECT_NE(error("", "[]").find("folder/generation_config.json"), std::string::npos);
    EXPECT_NE(error("", R"({"eos_token_id":"x"})").find("eos_token_id is no integer"), std::string::npos);
    EXPECT_NE(error("", R"({"eos_token_id":[261]})").find("261 is out of range, expected 0 to 260"),
              std::string::npos);
    EXPECT_NE(error("", R"({"eos_token_id":-1})").find("-1 is out of range"), std::string::npos);
    Metadata stated = folder("", "");
    stated.insert("config.eos_token_id", int64_t(261));
    const Result<Tokenizer> refused = Tokenizer::from_metadata(stated);
    ASSERT_FALSE(refused.ok());
    EXPECT_NE(refused.error().message.find("(config.json, "), std::string::npos);
}

TEST(JsonFacts, TemplateOfAFolder) {
    // Risk: the wrong one of several templates, or control tokens of the folder not guarded.
    const auto text = [](const Metadata& m) {
        const Result<ChatTemplate> chat = ChatTemplate::from_metadata(m);
        return chat.ok() ? chat.value().render("[]").value().text : chat.error().message;
    };
    EXPECT_EQ(text(folder(R"({"chat_template":"one{{ bos_token }}","bos_token":"<s>"})", "")), "one<s>");
    EXPECT_EQ(
        text(folder(R"({"chat_template":[{"name":"rag","template":"r"},{"name":"default","template":"d"}]})",
                    "")),
        "d");
    EXPECT_NE(text(folder(R"({"chat_template":[{"name":"rag","template":"r"}]})", "")).find("'default'"),
              std::string::npos);
    EXPECT_NE(text(folder("", "")).find("no chat template"), std::string::npos);
    Metadata both = folder(R"({"chat_template":"old"})", "");
    both.insert("chat_template.jinja", std::string("new"));
    EXPECT_EQ(text(both), "new");
    Metadata guarded = folder("", "");
    guarded.insert("chat_template.jinja", std::string("{{ messages[0].content }}<stop>"));
    const Rendered chat = ChatTemplate::from_metadata(guarded).value().render_user("<stop>").value();
    const auto ids = Tokenizer::from_metadata(guarded).value().encode(chat);
    EXPECT_EQ(ids.value().size(), 7u);
    EXPECT_EQ(ids.value().back(), TokenId(257));
}

}  // namespace
}  // namespace sparkinfer
