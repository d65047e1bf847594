#include "text/grammar.h"

#include <gtest/gtest.h>

#include <thread>

#include "core/json.h"
#include "text/test_grammar_walk.h"
#include "text/text_test_vocabulary.h"

namespace sparkinfer {
namespace {

class GrammarTest : public testing::Test {
  protected:
    static void SetUpTestSuite() {
        vocabulary_ = new TestVocabulary();
        auto tokenizer = Tokenizer::from_metadata(vocabulary_->metadata());
        ASSERT_TRUE(tokenizer.ok()) << tokenizer.error().message;
        tokenizer_ = new Tokenizer(std::move(tokenizer).value());
        auto compiler = GrammarCompiler::make(*tokenizer_);
        ASSERT_TRUE(compiler.ok()) << compiler.error().message;
        compiler_ = new GrammarCompiler(std::move(compiler).value());
    }
    static void TearDownTestSuite() {
        delete compiler_;
        delete tokenizer_;
        delete vocabulary_;
    }

    static GrammarMatcher compile(const Grammar& grammar) {
        auto matcher = compiler_->compile(grammar);
        if (!matcher.ok()) ADD_FAILURE() << matcher.error().message;
        return std::move(matcher).value();
    }
    static std::string error_of(const Grammar& grammar) {
        auto matcher = compiler_->compile(grammar);
        return matcher.ok() ? "" : matcher.error().message;
    }
    static TokenId id(const std::string& token) { return TokenId(vocabulary_->id(token)); }
    // The tokens that are allowed, as text; end tokens as their names.
    static std::vector<std::string> choices(GrammarMatcher& matcher) {
        std::vector<std::string> out;
        const auto bits = mask_of(matcher, *tokenizer_);
        for (int32_t i = 0; i < tokenizer_->size(); ++i)
            if (allowed(bits, i)) out.emplace_back(tokenizer_->piece(TokenId(i)));
        std::sort(out.begin(), out.end());
        return out;
    }

    static TestVocabulary* vocabulary_;
    static Tokenizer* tokenizer_;
    static GrammarCompiler* compiler_;
};
TestVocabulary* GrammarTest::vocabulary_ = nullptr;
Tokenizer* GrammarTest::tokenizer_ = nullptr;
GrammarCompiler* GrammarTest::compiler_ = nullptr;

// Risk: a mask allows a token that leaves the grammar, or forbids one that follows it.
TEST_F(GrammarTest, MaskIsExactForTokensOfSeveralBytes) {
    GrammarMatcher matcher = compile(Grammar::regex("(hello|help)!"));
    EXPECT_EQ(choices(matcher), (std::vector<std::string>{"h", "he", "hell", "hello"}));
    EXPECT_TRUE(matcher.advance(id("he")));
    EXPECT_EQ(choices(matcher), (std::vector<std::string>{"l", "ll"}));
    EXPECT_TRUE(matcher.advance(id("l")));
    EXPECT_EQ(choices(matcher), (std::vector<std::string>{"l", "p"}));
    EXPECT_FALSE(matcher.accepting());
}

// Risk: an answer may end in the middle, or may not end when it is whole; a token after the end revives it.
TEST_F(GrammarTest, EndTokensExactlyWhereTheTextIsWhole) {
    GrammarMatcher matcher = compile(Grammar::regex("a{1,2}"));
    EXPECT_FALSE(matcher.accepting());
    EXPECT_TRUE(matcher.advance(id("a")));
    EXPECT_TRUE(matcher.accepting());
    EXPECT_EQ(choices(matcher), (std::vector<std::string>{"<|endoftext|>", "<|im_end|>", "a"}));
    EXPECT_TRUE(matcher.advance(id("a")));
    EXPECT_EQ(choices(matcher), (std::vector<std::string>{"<|endoftext|>", "<|im_end|>"}));
    EXPECT_TRUE(matcher.advance(id("<|im_end|>")));
    EXPECT_TRUE(matcher.accepting());
    EXPECT_FALSE(matcher.advance(id("a")));
    EXPECT_EQ(choices(matcher), (std::vector<std::string>{"<|endoftext|>", "<|im_end|>"}));
    EXPECT_TRUE(matcher.error().empty());
}

// Risk: a forbidden token kills the request's grammar for good, or is taken silently.
TEST_F(GrammarTest, ForbiddenTokensLeaveOnlyTheEndAndCanBeTakenBack) {
    GrammarMatcher matcher = compile(Grammar::regex("ab"));
    const std::vector<TokenId> wrong = {id("b"),      id("<|im_end|>"), id("<|im_start|>"),
                                        id("[PAD0]"), TokenId(1 << 20), TokenId(-1)};
    const auto before = choices(matcher);
    for (TokenId token : wrong) {
        EXPECT_FALSE(matcher.advance(token));
        EXPECT_FALSE(matcher.advance(id("a")));
        EXPECT_EQ(choices(matcher), (std::vector<std::string>{"<|endoftext|>", "<|im_end|>"}));
        EXPECT_FALSE(matcher.accepting());
        matcher.rollback(2);
        EXPECT_EQ(choices(matcher), before);
    }
    EXPECT_TRUE(matcher.error().empty());
}

// Risk: rows that pad the embedding, control tokens or unused rows are sampled.
TEST_F(GrammarTest, RowsWithoutTextAreNeverAllowed) {
    GrammarMatcher matcher = compile(Grammar::regex("(?s:.*)"));
    for (size_t more : {0, 1, 7, 100}) {
        const auto bits = mask_of(matcher, *tokenizer_, more);
        for (int32_t i = tokenizer_->size(); i < static_cast<int32_t>(bits.size() * 32); ++i)
            EXPECT_FALSE(allowed(bits, i)) << i;
        EXPECT_FALSE(allowed(bits, raw(id("<|im_start|>"))));
        EXPECT_FALSE(allowed(bits, raw(id("[PAD0]"))));
        EXPECT_TRUE(allowed(bits, raw(id("</think>"))));
        EXPECT_TRUE(allowed(bits, raw(id("<|im_end|>"))));
    }
}

const char* const kSchema = R"({
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 12},
        "sizes": {"type": "array", "items": {"type": "integer", "minimum": -5, "maximum": 120}, "maxItems": 3},
        "kind": {"enum": ["hello", "aaaa", 12, null]},
        "next": {"anyOf": [{"$ref": "#"}, {"type": "null"}]}
    },
    "required": ["name", "kind"],
    "additionalProperties": false
})";

void check_value(const Json& value) {
    ASSERT_TRUE(value.is_object());
    const JsonObject& object = value.get_object();
    ASSERT_TRUE(object.contains("name") && object.at("name").is_string());
    ASSERT_TRUE(object.contains("kind"));
    for (const auto& [key, member] : object) {
        if (key == "sizes") {
            ASSERT_TRUE(member.is_array() && member.get_array().size() <= 3);
            for (const Json& size : member.get_array()) {
                int64_t n = 0;
                ASSERT_TRUE(json_is_int(size, &n) && n >= -5 && n <= 120);
            }
        } else if (key == "next") {
            if (!member.is_null()) check_value(member);
        } else {
            ASSERT_TRUE(key == "name" || key == "kind") << std::string(key);
        }
    }
}

// Risk: what the masks allow is no JSON, or breaks the schema.
TEST_F(GrammarTest, RandomAnswersFollowTheirSchema) {
    int ended = 0;
    for (uint32_t seed = 0; seed < 60; ++seed) {
        GrammarMatcher matcher = compile(Grammar::json_schema(kSchema));
        const Walk walk = Walker(*tokenizer_, seed).run(matcher, 600);
        EXPECT_EQ(walk.broken, "") << walk.text;
        if (!walk.ended) continue;
        ++ended;
        auto json = parse_json(walk.text, "walk", {.refuse_duplicate_keys = true});
        ASSERT_TRUE(json.ok()) << json.error().message << "\n" << walk.text;
        check_value(*json);
    }
    EXPECT_GE(ended, 30);
}

// Risk: after a rollback, or in a clone, the masks are others than of the same tokens read afresh.
TEST_F(GrammarTest, RollbackAndCloneEqualReplay) {
    std::mt19937 random(7);
    for (uint32_t seed = 0; seed < 20; ++seed) {
        GrammarMatcher matcher = compile(Grammar::json_schema(kSchema));
        std::vector<TokenId> tokens = Walker(*tokenizer_, seed).run(matcher, 80).tokens;
        for (int round = 0; round < 12; ++round) {
            const size_t back = std::uniform_int_distribution<size_t>(0, tokens.size())(random);
            matcher.rollback(static_cast<int32_t>(back));
            tokens.resize(tokens.size() - back);
            GrammarMatcher fresh = compile(Grammar::json_schema(kSchema));
            for (TokenId token : tokens) EXPECT_TRUE(fresh.advance(token));
            EXPECT_EQ(mask_of(matcher, *tokenizer_), mask_of(fresh, *tokenizer_));
            EXPECT_EQ(matcher.accepting(), fresh.accepting());
            auto clone = matcher.clone();
            ASSERT_TRUE(clone.ok());
            const Walk on = Walker(*tokenizer_, seed * 100 + static_cast<uint32_t>(round)).run(*clone, 30);
            EXPECT_EQ(mask_of(matcher, *tokenizer_), mask_of(fresh, *tokenizer_));  // untouched by its clone
            for (TokenId token : on.tokens) EXPECT_TRUE(matcher.advance(token));
            tokens.insert(tokens.end(), on.tokens.begin(), on.tokens.end());
            EXPECT_EQ(mask_of(matcher, *tokenizer_), mask_of(*clone, *tokenizer_));
        }
    }
}

// Risk: a grammar that cannot be used ends in a crash, a hang, or an answer without a grammar.
TEST_F(GrammarTest, BadGrammarsAreErrors) {
    EXPECT_NE(error_of(Grammar::regex("(a")), "");
    EXPECT_NE(error_of(Grammar::regex("")), "");
    EXPECT_NE(error_of(Grammar::regex("(?=a)b")), "");
    EXPECT_NE(error_of(Grammar::regex("a\\bb")), "");
    EXPECT_NE(error_of(Grammar::lark("start: missing")), "");
    EXPECT_NE(error_of(Grammar::lark("start: \"a")), "");
    EXPECT_NE(error_of(Grammar::lark("")), "");
    EXPECT_NE(error_of(Grammar::lark("start: start")), "");
    EXPECT_NE(error_of(Grammar::lark("start: @other")), "");
    EXPECT_NE(error_of(Grammar::json_schema(R"({"type": "object")")), "");
    EXPECT_NE(error_of(Grammar::json_schema(R"({"type": "number", "minimum": 3, "maximum": 1})")), "");
    EXPECT_NE(error_of(Grammar{"[]"}), "");
    EXPECT_NE(error_of(Grammar{"{}"}), "");
    EXPECT_NE(error_of(Grammar{R"([{"name": "a"}])"}), "");
    EXPECT_NE(error_of(Grammar{R"([{"name": "a", "lark": "start: \"a\"", "regex": "a"}])"}), "");
}

std::string repeat(const std::string& text, int times) {
    std::string out;
    for (int i = 0; i < times; ++i) out += text;
    return out;
}

// Risk: a hostile grammar takes the process down, or minutes. Each is an error or a grammar that works.
TEST_F(GrammarTest, HostileGrammarsEndWithinTheirLimits) {
    std::string refs = R"({"$ref": "#/$defs/d0", "$defs": {)";
    for (int i = 0; i < 5000; ++i) refs += fmt::format(R"("d{}": {{"$ref": "#/$defs/d{}"}},)", i, i + 1);
    refs += R"("d5000": {"type": "null"}}})";
    std::string rules;
    for (int i = 0; i < 15000; ++i)
        rules += fmt::format("{}{}: r{}\n", i == 0 ? "start" : "r", i == 0 ? "" : std::to_string(i), i + 1);
    rules += "r15000: \"a\"\n";
    const std::vector<Grammar> hostile = {
        Grammar::regex("(a{0,1000}){0,1000}"),
        Grammar::regex("((a{1,100}){1,100}){1,100}"),
        Grammar::regex("(a*)*b(a*)*c(a*)*"),
        Grammar::regex("(.*a.*){20}(.*b.*){20}(.*c.*){20}"),
        Grammar::regex(repeat("(", 10000) + "a" + repeat(")", 10000)),
        Grammar::regex(repeat("(a|b|", 200) + "c" + repeat(")*", 200)),
        Grammar::regex("[a-z]{1,100000}"),
        Grammar::regex("(x+x+)+y"),
        Grammar::regex(repeat("(\\w|\\d|.)", 1000)),
        Grammar::lark("start: " + repeat("(", 100000) + "\"a\"" + repeat(")", 100000)),
        Grammar::lark(rules),
        Grammar::lark("start: start start | \"a\" | \"\""),
        Grammar::lark("start: a~1..100000000\na: \"a\" | \"aa\" | start"),
        Grammar::json_schema(refs),
        Grammar::json_schema(repeat(R"({"items":)", 100) + "{}" + repeat("}", 100)),
        Grammar::json_schema(
            R"({"type": "array", "minItems": 1000000000, "items": {"type": "array", "minItems": 1000000000}})"),
        Grammar::json_schema(R"({"type": "string", "minLength": 100000000, "maxLength": 2000000000})"),
        Grammar::json_schema(R"({"type": "string", "pattern": "^(a+)+$", "maxLength": 100000})"),
        Grammar::json_schema(R"({"type": "integer", "multipleOf": 0})"),
        Grammar::json_schema(R"({"type": "number", "multipleOf": 1e-300})"),
        Grammar::json_schema(
            R"({"type": "integer", "minimum": -9223372036854775808, "maximum": 9223372036854775807})"),
        Grammar::json_schema(R"({"type": "number", "minimum": -1e308, "maximum": 1e308})"),
    };
    for (const Grammar& grammar : hostile) {
        const auto start = std::chrono::steady_clock::now();
        auto matcher = compiler_->compile(grammar);
        if (matcher.ok()) {
            for (uint32_t seed = 0; seed < 2; ++seed) {
                auto copy = matcher->clone();
                ASSERT_TRUE(copy.ok());
                for (int step = 0; step < 50; ++step) {
                    const auto bits = mask_of(*copy, *tokenizer_);
                    int32_t pick = 0;
                    while (!allowed(bits, pick)) ++pick;
                    copy->advance(TokenId(pick));
                }
            }
        }
        const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
        const std::string told = matcher.ok() ? "compiled" : matcher.error().message;
        EXPECT_LT(seconds.count(), 10.0) << grammar.parts.substr(0, 100);
        EXPECT_LT(told.size(), 1000U) << told;
    }
}

// Risk: two threads that use one compiler disturb each other, or the cache grows past its limit.
TEST_F(GrammarTest, ManyThreadsShareOneCompilerAndABoundedCache) {
    auto compiler = GrammarCompiler::make(*tokenizer_, {.cache_bytes = 1 << 20});
    ASSERT_TRUE(compiler.ok());
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&, t] {
            for (int i = 0; i < 30; ++i) {
                auto matcher =
                    compiler->compile(Grammar::regex("a{" + std::to_string(1 + (i + t) % 25) + "}"));
                ASSERT_TRUE(matcher.ok());
                for (int n = 0; n < 1 + (i + t) % 25; ++n) {
                    ASSERT_FALSE(matcher->accepting());
                    ASSERT_TRUE(matcher->advance(id("a")));
                    mask_of(*matcher, *tokenizer_);
                }
                ASSERT_TRUE(matcher->accepting());
            }
        });
    for (std::thread& thread : threads) thread.join();
    const auto stats = compiler->stats();
    EXPECT_LE(stats.bytes, size_t{1} << 20);
    EXPECT_GT(stats.hits, 0);
    EXPECT_EQ(stats.hits + stats.misses, 120);
}

}  // namespace
}  // namespace sparkinfer
