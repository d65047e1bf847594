// A process that is killed while it writes the prefix cache leaves the file as it was, or the new one whole.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>

#include "cpu/backend.h"
#include "engine/engine.h"

namespace sparkinfer {
namespace {

namespace fs = std::filesystem;

const std::string kModel = std::string(SPARKINFER_SOURCE_DIR) + "/tests/golden/quantised/llama.gguf";

struct Opened {
    std::unique_ptr<Backend> backend = make_cpu_backend({.threads = 1}).value();
    std::unique_ptr<Engine> engine =
        Engine::open(kModel, *backend,
                     {.context = 1024, .slots = 2, .kv_tokens = 1 << 15, .prefix_cache = true})
            .value();

    // Runs a prompt of its own for each number; how many of its tokens were cached.
    int32_t run(int number) {
        Request r;
        for (int i = 0; i < 500; ++i) r.prompt.push_back(TokenId((number * 131 + i * 7) % 500));
        r.max_tokens = 1;
        if (!engine->submit(r).ok()) return -1;
        int32_t cached = 0;
        while (!engine->idle())
            for (const Event& e : engine->step().value())
                if (e.admission) cached = e.admission->cached_tokens;
        return cached;
    }
};

// Saves after one prompt, says so, and goes on saving more and more until it is killed.
[[noreturn]] void save_for_ever(const std::string& path, int tell) {
    Opened o;
    for (int number = 0;; ++number) {
        o.run(number % 60);
        if (!o.engine->save_cache(path).ok()) _exit(9);
        if (write(tell, "s", 1) != 1) _exit(8);
    }
}

// How many saves a process finished that was killed `delay_us` after its third.
int kill_a_saver(const std::string& path, unsigned delay_us) {
    int ends[2];
    if (pipe(ends) != 0) return -1;
    const pid_t child = fork();
    if (child == 0) save_for_ever(path, ends[1]);
    close(ends[1]);
    int saves = 0;
    for (char c = 0; saves < 3 && read(ends[0], &c, 1) == 1;) ++saves;
    usleep(delay_us);
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    for (char c = 0; read(ends[0], &c, 1) == 1;) ++saves;
    close(ends[0]);
    return WIFSIGNALED(status) ? saves : -1;
}

// Risk: a crash in the middle of saving loses what an earlier save had kept.
TEST(SavedCache, SurvivesKillsInTheMiddleOfSaving) {
    const fs::path folder = fs::temp_directory_path() / fmt::format("saved-cache-{}", getpid());
    fs::create_directories(folder);
    const std::string path = (folder / "cache").string();
    for (unsigned round = 0; round < 12; ++round) {
        const int saves = kill_a_saver(path, round * 997 % 9000);
        ASSERT_GE(saves, 3) << "round " << round;
        Opened o;
        const auto loaded = o.engine->load_cache(path);
        ASSERT_TRUE(loaded.ok()) << loaded.error().message;
        EXPECT_GE(o.run(0), 448) << "the first prompt is not in the file, round " << round;
        EXPECT_GE(o.run(2), 448) << "the third prompt is not in the file, round " << round;
        EXPECT_LT(o.run(63), 448) << "a prompt that nobody ran is in the file";
    }
    fs::remove_all(folder);
}

// Risk: a damaged file is taken, and answers are made from it.
TEST(SavedCache, RefusesDamagedFiles) {
    const fs::path folder = fs::temp_directory_path() / fmt::format("damaged-cache-{}", getpid());
    fs::create_directories(folder);
    const std::string path = (folder / "cache").string();
    {
        Opened o;
        o.run(0);
        ASSERT_TRUE(o.engine->save_cache(path).ok());
    }
    std::ifstream in(path, std::ios::binary);
    const std::string good((std::istreambuf_iterator<char>(in)), {});
    ASSERT_GT(good.size(), 1000u);
    Opened o;
    const auto refused = [&](const std::string& bytes, const std::string& what) {
        std::ofstream(path, std::ios::binary | std::ios::trunc) << bytes;
        EXPECT_FALSE(o.engine->load_cache(path).ok()) << what;
    };
    for (size_t i = 0; i < 64; ++i) {
        std::string bad = good;
        const size_t at = i < 32 ? i * 4 : (i * 2654435761u) % good.size();
        bad[at] = char(bad[at] ^ 0x10);
        refused(bad, fmt::format("byte {} of {} changed", at, good.size()));
    }
    for (const size_t left : {size_t(0), size_t(7), good.size() / 2, good.size() - 1})
        refused(good.substr(0, left), fmt::format("cut to {} bytes", left));
    refused(good + "x", "a byte too many");
    EXPECT_EQ(o.run(0), 0) << "something of a refused file was kept";
    std::ofstream(path, std::ios::binary | std::ios::trunc) << good;
    EXPECT_TRUE(o.engine->load_cache(path).ok());
    fs::remove_all(folder);
}

}  // namespace
}  // namespace sparkinfer
