#include "cli/compare.h"

#include <gtest/gtest.h>

#include "cli/process.h"

namespace sparkinfer {
namespace {

const PeerTest kTest{"llama-bench", "m.gguf", 0, 128, 4096, 2, true};
const std::string kAnswer =
    R"([{"build_commit": "abc123", "backends": "CUDA", "type_k": "f16", "n_prompt": 0, "n_gen": 128, "n_depth": 4096, "avg_ts": 201.5}])";

std::string trouble(const std::string& json) {
    const auto parsed = parse_peer(json, kTest);
    return parsed.ok() ? "nothing" : parsed.error().message;
}

// Risk: the peer is asked for another test than ours.
TEST(Compare, AsksForOneRunOfTheSameTest) {
    EXPECT_EQ(peer_command(kTest),
              (std::vector<std::string>{"llama-bench", "-m", "m.gguf", "-p", "0", "-n", "128", "-d", "4096",
                                        "-t", "2", "-ngl", "99", "-r", "1", "-o", "json"}));
}

// Risk: the figure of another test, or of a broken answer, becomes a ratio.
TEST(Compare, ReadsTheAnswerToItsQuestionAlone) {
    const auto parsed = parse_peer(kAnswer, kTest);
    ASSERT_TRUE(parsed.ok()) << parsed.error().message;
    EXPECT_EQ(parsed.value().tokens_per_s, 201.5);
    EXPECT_EQ(parsed.value().backends, "CUDA");
    EXPECT_EQ(parsed.value().commit, "abc123");
    EXPECT_EQ(parsed.value().type_k, "f16");
    const auto with = [](const std::string& from, const std::string& to) {
        std::string text = kAnswer;
        return text.replace(text.find(from), from.size(), to);
    };
    EXPECT_EQ(trouble(with("\"n_gen\": 128", "\"n_gen\": 64")),
              "llama-bench: its result has n_gen 64, expected 128");
    EXPECT_EQ(trouble(with("\"n_depth\": 4096", "\"n_depth\": 0")),
              "llama-bench: its result has n_depth 0, expected 4096");
    EXPECT_EQ(trouble(with("201.5", "0")), "llama-bench: its result has avg_ts 0, expected a number above 0");
    EXPECT_EQ(trouble("[]"),
              "llama-bench: answered with 0 results, expected the one of the test that was asked for");
    for (const std::string& broken :
         {std::string("{}"), std::string(""), std::string("[1]"), kAnswer.substr(0, 40)})
        EXPECT_NE(trouble(broken), "nothing") << broken;
}

// Risk: what another program says is lost, mixed up, or its failure is taken for success.
TEST(Process, GivesBothStreamsAndTheExitCode) {
    const auto done = run_process({"sh", "-c", "printf out; printf err >&2; cat; exit 7"});
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_EQ(done.value().out, "out");
    EXPECT_EQ(done.value().err, "err");
    EXPECT_EQ(done.value().code, 7);
    const auto killed = run_process({"sh", "-c", "kill -9 $$"});
    ASSERT_TRUE(killed.ok());
    EXPECT_EQ(killed.value().code, 128 + 9);
    const auto much = run_process({"sh", "-c", "head -c 1000000 /dev/zero"});
    ASSERT_TRUE(much.ok());
    EXPECT_EQ(much.value().out.size(), 1000000u);
    EXPECT_EQ(run_process({"./no-such-program"}).error().kind, ErrorKind::bad_input);
}

}  // namespace
}  // namespace sparkinfer
