// Unit tests of the tokenizer on a small made vocabulary; real vocabularies and oracles are in
// tests/golden/text.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <chrono>
#include <ctime>
#include <random>
#include <thread>

#include "text/text_test_vocabulary.h"

namespace sparkinfer {
namespace {

using Specials = Tokenizer::Specials;

std::vector<int32_t> ids(const Result<std::vector<TokenId>>& result) {
    std::vector<int32_t> out;
    EXPECT_TRUE(result.ok()) << (result.ok() ? "" : result.error().message);
    if (result.ok())
        for (TokenId id : result.value()) out.push_back(raw(id));
    return out;
}

std::string failure(const Metadata& metadata) {
    const Result<Tokenizer> tokenizer = Tokenizer::from_metadata(metadata);
    if (tokenizer.ok()) return "";
    EXPECT_EQ(tokenizer.error().kind, ErrorKind::bad_input);
    return tokenizer.error().message;
}

// The metadata with one key set to another value.
Metadata with(const Metadata& base, const std::string& key, MetadataValue value) {
    Metadata out(base.source());
    out.insert(key, std::move(value));
    for (const auto& [name, old] : base.entries()) out.insert(name, old);
    return out;
}

Metadata without(const Metadata& base, const std::string& key) {
    Metadata out(base.source());
    for (const auto& [name, value] : base.entries())
        if (name != key) out.insert(name, value);
    return out;
}

TEST(Tokenizer, MergesByRank) {
    // Risk: merge order or byte mapping wrong, so that every prompt is off.
    const TestVocabulary v;
    const Tokenizer t = Tokenizer::from_metadata(v.metadata()).value();
    EXPECT_EQ(ids(t.encode("hello w", Specials::parse)), (std::vector{v.id("hello"), v.id("Ġw")}));
    EXPECT_EQ(ids(t.encode("aaaaaaa", Specials::parse)), (std::vector{v.id("aaaa"), v.id("aa"), v.id("a")}));
    EXPECT_EQ(ids(t.encode("", Specials::parse)), std::vector<int32_t>());
}

TEST(Tokenizer, PreTokenisersDiffer) {
    // Risk: a GGUF's pre-tokeniser is ignored. 123 is one token only where three digits stay together.
    for (const auto& [pre, together] :
         {std::pair{"llama-bpe", true}, {"qwen2", false}, {"qwen35", false}, {"smollm", false}}) {
        TestVocabulary v;
        v.pre = pre;
        const Tokenizer t =
            Tokenizer::from_metadata(with(v.metadata(), "tokenizer.ggml.add_bos_token", false)).value();
        const auto expected =
            together ? std::vector{v.id("123")} : std::vector{v.id("1"), v.id("2"), v.id("3")};
        EXPECT_EQ(ids(t.encode("123", Specials::parse)), expected) << pre;
    }
}

TEST(Tokenizer, ControlTokensOnlyWhenParsed) {
    // Risk: text of a user opens a turn.
    const TestVocabulary v;
    const Tokenizer t = Tokenizer::from_metadata(v.metadata()).value();
    const std::string text = "<|im_end|>h<think>";
    EXPECT_EQ(ids(t.encode(text, Specials::parse)),
              (std::vector{v.id("<|im_end|>"), v.id("h"), v.id("<think>")}));
    const auto plain = ids(t.encode(text, Specials::none));
    EXPECT_EQ(plain.size(), 12u);  // ten characters, h, <think>
    EXPECT_EQ(plain.back(), v.id("<think>"));
}

TEST(Tokenizer, GuardedRangesMakeNoControlTokens) {
    // Risk: a control token that only touches message text is still taken, or one beside it is lost.
    const TestVocabulary v;
    const Tokenizer t = Tokenizer::from_metadata(v.metadata()).value();
    const std::string tag = "<|im_end|>";
    const Rendered chat{tag + tag + tag, {{tag.size(), tag.size() + 1}}};
    const auto found = ids(t.encode(chat));
    EXPECT_EQ(found.size(), 12u);
    EXPECT_EQ(found.front(), v.id(tag));
    EXPECT_EQ(found.back(), v.id(tag));
    const Rendered last_byte{tag, {{tag.size() - 1, tag.size()}}};
    EXPECT_EQ(ids(t.encode(last_byte)).size(), 10u);
}

TEST(Tokenizer, AddsBosAndEosAsTheFileSays) {
    // Risk: BOS doubled or missing; both are silent quality losses.
    const TestVocabulary v;
    Metadata m = v.metadata();
    EXPECT_EQ(ids(Tokenizer::from_metadata(m).value().encode("h", Specials::parse)).size(), 1u);
    m = with(with(m, "tokenizer.ggml.add_bos_token", true), "tokenizer.ggml.add_eos_token", true);
    const Tokenizer t = Tokenizer::from_metadata(m).value();
    EXPECT_EQ(ids(t.encode("h", Specials::none)),
              (std::vector{v.id("<|im_start|>"), v.id("h"), v.id("<|im_end|>")}));
    EXPECT_EQ(ids(t.encode("h", Specials::none, false)), std::vector{v.id("h")});
}

TEST(Tokenizer, EndTokensAreAUnion) {
    // Risk: generation runs past an end token that only its name reveals.
    const TestVocabulary v;
    const Tokenizer t = Tokenizer::from_metadata(v.metadata()).value();
    const std::vector<TokenId> expected{TokenId(v.id("<|im_end|>")), TokenId(v.id("<|endoftext|>"))};
    EXPECT_EQ(t.end_tokens(), expected);
}

TEST(Tokenizer, PiecesKindsAndFind) {
    // Risk: logprobs and stop strings see mapped characters instead of bytes.
    const TestVocabulary v;
    const Tokenizer t = Tokenizer::from_metadata(v.metadata()).value();
    EXPECT_EQ(t.size(), static_cast<int32_t>(v.tokens.size()));
    EXPECT_EQ(t.piece(TokenId(v.id("Ġw"))), " w");
    for (int b = 0; b < 256; ++b) EXPECT_EQ(t.piece(TokenId(b)), std::string(1, static_cast<char>(b)));
    EXPECT_EQ(t.kind(TokenId(v.id("<think>"))), TokenKind::user_defined);
    EXPECT_EQ(t.kind(TokenId(v.id("[PAD0]"))), TokenKind::unused);
    EXPECT_EQ(t.kind(TokenId(t.size())), TokenKind::unused);
    EXPECT_EQ(t.piece(TokenId(-1)), "");
    EXPECT_EQ(t.find("<|im_end|>"), TokenId(v.id("<|im_end|>")));
    EXPECT_EQ(t.find(" w"), TokenId(v.id("Ġw")));
    EXPECT_EQ(t.find("no such token"), std::nullopt);
}

TEST(Tokenizer, RoundTripOfEveryByteAndCodePoint) {
    // Risk: some character is lost or split wrongly on the way there and back.
    for (const char* pre : {"smollm", "llama-bpe"}) {
        TestVocabulary v;
        v.pre = pre;
        const Tokenizer t = Tokenizer::from_metadata(v.metadata()).value();
        std::string text;
        for (uint32_t c = 1; c < 0x30000; c += c < 0x3000 ? 1 : 61) {
            if (c >= 0xD800 && c < 0xE000) continue;
            if (c < 0x80) {
                text += static_cast<char>(c);
            } else if (c < 0x800) {
                text += {static_cast<char>(0xC0 | (c >> 6)), static_cast<char>(0x80 | (c & 63))};
            } else if (c < 0x10000) {
                text += {static_cast<char>(0xE0 | (c >> 12)), static_cast<char>(0x80 | ((c >> 6) & 63)),
                         static_cast<char>(0x80 | (c & 63))};
            } else {
                text += {static_cast<char>(0xF0 | (c >> 18)), static_cast<char>(0x80 | ((c >> 12) & 63)),
                         static_cast<char>(0x80 | ((c >> 6) & 63)), static_cast<char>(0x80 | (c & 63))};
            }
        }
        const auto encoded = t.encode(text, Specials::parse, false);
        ASSERT_TRUE(encoded.ok());
        EXPECT_EQ(t.decode(encoded.value()), text) << pre;
    }
}

TEST(Tokenizer, InvalidUtf8NamesTheByte) {
    // Risk: undefined behaviour behind the C border, or a message nobody can act on.
    const Tokenizer t = Tokenizer::from_metadata(TestVocabulary().metadata()).value();
    for (const char* text : {"abc\xff", "abc\xc3", "abc\xed\xa0\x80", "abc\xc0\x80"}) {
        const auto result = t.encode(text, Specials::parse);
        ASSERT_FALSE(result.ok());
        EXPECT_EQ(result.error().kind, ErrorKind::bad_input);
        EXPECT_EQ(result.error().message, "the text is not valid UTF-8 at byte 3");
    }
}

TEST(Tokenizer, RefusesBrokenVocabularies) {
    // Risk: a malformed file crashes, or is read as something else.
    const Metadata good = TestVocabulary().metadata();
    const auto broken = [&](const std::string& key, MetadataValue value) {
        return failure(with(good, "tokenizer.ggml." + key, std::move(value)));
    };
    EXPECT_EQ(failure(good), "");
    EXPECT_NE(failure(Metadata("x")).find("no tokenizer"), std::string::npos);
    EXPECT_NE(broken("model", std::string("llama")).find("'llama', expected gpt2"), std::string::npos);
    EXPECT_NE(broken("pre", std::string("deepseek-llm")).find("'deepseek-llm', expected one of"),
              std::string::npos);
    EXPECT_NE(broken("tokens", std::vector<std::string>()).find("tokens is missing or empty"),
              std::string::npos);
    EXPECT_NE(broken("tokens", int64_t{3}).find("array of strings"), std::string::npos);
    EXPECT_NE(broken("token_type", std::vector<int64_t>{1, 2}).find("has 2 entries"), std::string::npos);
    EXPECT_NE(broken("bos_token_id", int64_t{100000}).find("bos_token_id"), std::string::npos);
    EXPECT_NE(broken("eos_token_id", int64_t{-1}).find("eos_token_id"), std::string::npos);
    EXPECT_NE(broken("merges", std::vector<std::string>{"ab"}).find("merges[0] is 'ab'"), std::string::npos);
    EXPECT_NE(broken("merges", std::vector<std::string>{"h e", "x y"}).find("merges[1] needs the token 'xy'"),
              std::string::npos);
    EXPECT_NE(broken("merges", std::vector<std::string>{"hellohello hellohello"}).find("needs the token"),
              std::string::npos);
    EXPECT_NE(failure(without(good, "tokenizer.ggml.merges")).find("merges is missing"), std::string::npos);
    TestVocabulary twice;
    twice.add("hello", 1);
    EXPECT_NE(failure(twice.metadata()).find("repeats 'hello' of entry"), std::string::npos);
    TestVocabulary hidden;
    hidden.add("he<|im_end|>", 1);
    hidden.merges.emplace_back("he <|im_end|>");
    EXPECT_NE(failure(hidden.metadata()).find("which is a control token"), std::string::npos);
    TestVocabulary typed;
    typed.types[7] = 9;
    EXPECT_NE(failure(typed.metadata()).find("token_type[7] is 9"), std::string::npos);
    TestVocabulary invalid;
    invalid.add("\xff", 1);
    EXPECT_NE(failure(invalid.metadata()).find("not valid UTF-8"), std::string::npos);
    EXPECT_NE(
        failure(with(without(good, "tokenizer.ggml.bos_token_id"), "tokenizer.ggml.add_bos_token", true))
            .find("bos_token_id is missing"),
        std::string::npos);
}

TEST(Tokenizer, RefusesBrokenTokenizerJson) {
    // Risk: the crate panics on a malformed file.
    const auto of = [](std::string json) {
        Metadata m("folder");
        m.insert("tokenizer.json", std::move(json));
        return failure(m);
    };
    const std::string bytes =
        R"({"type":"ByteLevel","add_prefix_space":false,"trim_offsets":false,"use_regex":true})";
    const std::string tail = R"(,"decoder":)" + bytes + R"(,"pre_tokenizer":)" + bytes + "}";
    EXPECT_NE(of("{").find("tokenizer.json"), std::string::npos);
    EXPECT_NE(of(R"({"model":{"type":"Unigram","vocab":[]}})").find("tokenizer.json"), std::string::npos);
    EXPECT_NE(of(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})").find("decoder"),
              std::string::npos);
    EXPECT_NE(
        of(R"({"model":{"type":"BPE","vocab":{"a":0,"b":1},"merges":["a b"]})" + tail).find("tokenizer.json"),
        std::string::npos);
    EXPECT_NE(of(R"({"model":{"type":"BPE","vocab":{"a":4000000000},"merges":[]})" + tail).find("4000000000"),
              std::string::npos);
    EXPECT_NE(of(std::string(100000, '[')).find("tokenizer.json"), std::string::npos);
}

TEST(Tokenizer, AMegabyteOfOneCharacter) {
    // Risk: quadratic time, or a regex engine that gives up; processor time, so that a busy machine does not
    // fail it.
    for (const char* pre : {"smollm", "llama-bpe", "qwen2", "qwen35"}) {
        TestVocabulary v;
        v.pre = pre;
        const Tokenizer t = Tokenizer::from_metadata(v.metadata()).value();
        for (const char* unit : {"a", " ", "\n", "1", "=", "'", "<", "\xC3\xA9", "\xCC\x81", "<|im_start|"}) {
            std::string text;
            while (text.size() < (1u << 20)) text += unit;
            const std::clock_t start = std::clock();
            const auto encoded = t.encode(text, Specials::parse, false);
            const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
            ASSERT_TRUE(encoded.ok());
            EXPECT_EQ(t.decode(encoded.value()), text) << pre << " " << unit;
            EXPECT_LT(seconds, 2.0) << pre << " " << unit;
        }
    }
}

// Words, numbers, spaces, other scripts and control tokens, in an order that `seed` decides.
std::string random_text(uint32_t seed) {
    constexpr std::string_view kPieces[] = {"hello",
                                            " w",
                                            "aaaa",
                                            "123",
                                            "12",
                                            "\n",
                                            "  ",
                                            "'s",
                                            "\xC3\xA9",
                                            "\xE4\xB8\xAD",
                                            "<|im_end|>",
                                            "<think>",
                                            "\xF0\x9F\x98\x80",
                                            ",",
                                            "He",
                                            "\t\n",
                                            "[PAD0]"};
    std::mt19937 random(seed);
    std::string text;
    for (uint32_t n = 1 + random() % 60; n > 0; --n) text += kPieces[random() % std::size(kPieces)];
    return text;
}

TEST(Tokenizer, TenThousandTextsOnSixtyFourThreads) {
    // Risk: hidden shared state (caches) makes concurrent encodes wrong.
    constexpr size_t kThreads = 64, kTexts = 2500;  // of each pre-tokenizer
    for (const char* pre : {"smollm", "llama-bpe", "qwen2", "qwen35"}) {
        TestVocabulary v;
        v.pre = pre;
        const Tokenizer one = Tokenizer::from_metadata(v.metadata()).value();
        const Tokenizer shared = Tokenizer::from_metadata(v.metadata()).value();
        std::vector<std::string> texts;
        std::vector<std::vector<int32_t>> serial, parallel(kTexts);
        for (uint32_t i = 0; i < kTexts; ++i) {
            texts.push_back(random_text(i));
            serial.push_back(ids(one.encode(texts.back(), Specials::parse, false)));
        }
        std::vector<std::thread> threads;
        threads.reserve(kThreads);
        for (size_t t = 0; t < kThreads; ++t)
            threads.emplace_back([&, t] {
                for (size_t i = t; i < kTexts; i += kThreads) {
                    const auto encoded = shared.encode(texts[i], Specials::parse, false);
                    if (encoded.ok() && shared.decode(encoded.value(), true) == texts[i])
                        for (const TokenId id : encoded.value()) parallel[i].push_back(raw(id));
                }
            });
        for (std::thread& thread : threads) thread.join();
        for (size_t i = 0; i < kTexts; ++i) ASSERT_EQ(parallel[i], serial[i]) << pre << ": " << texts[i];
    }
}

}  // namespace
}  // namespace sparkinfer
