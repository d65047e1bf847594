// The scripted model says what its script has through the engine, under masks, and reports what it could not
// say.
#include "scripted_backend.h"

#include <gtest/gtest.h>

#include "cli/model_facts.h"
#include "engine/engine.h"

namespace sparkinfer::test {
namespace {

const std::string kModel = std::string(SPARKINFER_SOURCE_DIR) + "/tests/golden/quantised/llama.gguf";

struct Scripted {
    std::shared_ptr<const Speaker> speaker;
    std::shared_ptr<ScriptReport> report = std::make_shared<ScriptReport>();
    std::unique_ptr<ScriptedBackend> backend;
    std::unique_ptr<Engine> engine;

    explicit Scripted(std::string_view script, int slots = 1) {
        Tokenizer tokenizer = Tokenizer::from_metadata(model_metadata(kModel).value()).value();
        speaker =
            std::make_shared<Speaker>(Script::parse(script, "the script").value(), std::move(tokenizer));
        backend =
            std::make_unique<ScriptedBackend>(make_cpu_backend({.threads = 1}).value(), speaker, report);
        engine = Engine::open(kModel, *backend, {.context = 512, .slots = slots}).value();
    }
    Request request(std::string_view prompt) const {
        Request r;
        r.prompt = speaker->tokenizer().encode(prompt, Tokenizer::Specials::parse).value();
        r.stop_tokens = {speaker->end()};
        return r;
    }
    // The texts of all answers, by request.
    std::map<RequestId, std::string> run() {
        std::map<RequestId, std::vector<TokenId>> tokens;
        while (!engine->idle())
            for (const Event& e : engine->step().value()) {
                if (e.token) tokens[e.request].push_back(*e.token);
                if (e.logprobs) {
                    EXPECT_LE(e.logprobs->logprob, 0);
                }
            }
        std::map<RequestId, std::string> texts;
        for (const auto& [id, ids] : tokens) texts[id] = speaker->tokenizer().decode(ids, true);
        return texts;
    }
};

constexpr std::string_view kTwoTurns = R"({"rules": [
    {"turn": 1, "contains": ["apples"], "say": "I count three apples."},
    {"turn": 2, "contains": ["apples"], "tail": ["more"], "say": "Four of them now."},
    {"turn": 1, "contains": ["pears"], "say": "No pears."}]})";

// Risk: the script reaches the wrong conversation or turn when several run at once.
TEST(ScriptedBackend, SaysItsLinesAmongNeighbours) {
    Scripted s(kTwoTurns, 3);
    const std::string first = "<|im_start|>user\napples<|im_end|>\n<|im_start|>assistant\n";
    Request with_logprobs = s.request(first);
    with_logprobs.logprobs = 2;
    const RequestId a = s.engine->submit(with_logprobs).value();
    const RequestId b =
        s.engine->submit(s.request("<|im_start|>user\npears<|im_end|>\n<|im_start|>assistant\n")).value();
    const RequestId c =
        s.engine
            ->submit(s.request(first + "I count three apples.<|im_end|>\n<|im_start|>user\nmore"
                                       "<|im_end|>\n<|im_start|>assistant\n"))
            .value();
    auto texts = s.run();
    EXPECT_EQ(texts[a], "I count three apples.");
    EXPECT_EQ(texts[b], "No pears.");
    EXPECT_EQ(texts[c], "Four of them now.");
    EXPECT_EQ(s.report->answers(), 3);
    EXPECT_EQ(s.report->failures(), 0);
}

// Risk: an answer goes on behind its limit, or a second request with the same prompt in the same slot is
// taken for the first.
TEST(ScriptedBackend, EndsAtTheLimitAndStartsAgain) {
    Scripted s(kTwoTurns);
    Request r = s.request("<|im_start|>user\napples<|im_end|>\n<|im_start|>assistant\n");
    r.max_tokens = 3;
    const RequestId a = s.engine->submit(r).value();
    auto texts = s.run();
    EXPECT_TRUE(std::string_view("I count three apples.").starts_with(texts[a])) << texts[a];
    r.max_tokens = -1;
    const RequestId b = s.engine->submit(r).value();
    texts = s.run();
    EXPECT_EQ(texts[b], "I count three apples.");
    EXPECT_EQ(s.report->answers(), 2);
}

// Allows everything but one token.
struct AllBut final : Constraint {
    explicit AllBut(TokenId token) : forbidden(token) {}
    void advance(TokenId) override {}
    void mask(std::span<uint32_t> bits) override {
        for (uint32_t& word : bits) word = ~0u;
        bits[size_t(raw(forbidden)) / 32] &= ~(1u << (raw(forbidden) % 32));
    }
    void rollback(int32_t) override {}
    TokenId forbidden;
};

// Risk: a grammar that forbids what the model wants to say goes unnoticed, so that the agents' tests prove
// nothing.
TEST(ScriptedBackend, ReportsWhatTheMaskRefuses) {
    Scripted s(kTwoTurns);
    const std::vector<TokenId> line =
        s.speaker->tokenizer().encode("I count three apples.", Tokenizer::Specials::parse, false).value();
    Request r = s.request("<|im_start|>user\napples<|im_end|>\n<|im_start|>assistant\n");
    r.constraint = std::make_shared<AllBut>(line[2]);
    const RequestId id = s.engine->submit(r).value();
    auto texts = s.run();
    EXPECT_EQ(s.report->failures(), 1);
    EXPECT_FALSE(texts[id].starts_with("I count three apples.")) << texts[id];
}

// Risk: an answer that no rule foresees passes as said.
TEST(ScriptedBackend, ReportsAPromptWithoutARule) {
    Scripted s(kTwoTurns);
    ASSERT_TRUE(
        s.engine->submit(s.request("<|im_start|>user\nplums<|im_end|>\n<|im_start|>assistant\n")).ok());
    s.run();
    EXPECT_EQ(s.report->failures(), 1);
    EXPECT_EQ(s.report->answers(), 0);
}

// Risk: a mistyped rule is dropped and the test tests less than it says.
TEST(Script, RefusesWhatItDoesNotKnow) {
    const std::pair<const char*, const char*> bad[] = {
        {R"({})", "'rules' is missing"},
        {R"({"rules": [{"turns": 1, "say": ""}]})", "a rule has 'turns'"},
        {R"({"rules": [{"turn": 1}]})", "say"},
        {R"({"rules": [{"contains": "x", "say": ""}]})", "contains"},
        {R"({"step_ms": -1, "rules": []})", "step_ms is -1"}};
    for (const auto& [text, message] : bad) {
        const auto script = Script::parse(text, "the script");
        ASSERT_FALSE(script.ok()) << text;
        EXPECT_NE(script.error().message.find(message), std::string::npos) << script.error().message;
    }
}

}  // namespace
}  // namespace sparkinfer::test
