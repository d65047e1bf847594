#include "ops/read_ring.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <numeric>
#include <random>

namespace sparkinfer {
namespace {

using namespace std::chrono_literals;

// Memory that is read slowly and unevenly; from its n-th read on it may fail. Views outside of it are a
// fault.
class SlowSource final : public ByteSource {
  public:
    explicit SlowSource(size_t bytes) : bytes_(bytes) {
        std::mt19937 random(11);
        for (std::byte& b : bytes_) b = std::byte(random());
    }
    const std::byte* data() const { return bytes_.data(); }
    Result<void> read(const void* view, std::span<std::byte> to) override {
        const int64_t n = reads++;
        const int inside = ++at_once;
        for (int most = most_at_once; inside > most && !most_at_once.compare_exchange_weak(most, inside);) {
        }
        // The first reads wait for each other, so that threads that take turns are found out.
        for (int i = 0; i < 2000 && meet > 0 && most_at_once < meet; ++i) std::this_thread::sleep_for(1ms);
        if (n % 7 == 3) std::this_thread::sleep_for(1ms);
        const auto* from = static_cast<const std::byte*>(view);
        EXPECT_GE(from, bytes_.data());
        EXPECT_LE(from + to.size(), bytes_.data() + bytes_.size());
        --at_once;
        if (fail_at >= 0 && n >= fail_at) return bad_input("model.bin: read {} fails in a test", fail_at);
        std::copy_n(from, to.size(), to.begin());
        return {};
    }
    int64_t fail_at = -1;
    int meet = 0;
    std::atomic<int64_t> reads = 0;
    std::atomic<int> at_once = 0, most_at_once = 0;

  private:
    std::vector<std::byte> bytes_;
};

std::vector<ReadRing::Run> random_runs(const SlowSource& source, int64_t bytes, int count, int64_t longest) {
    std::mt19937 random(5);
    std::vector<ReadRing::Run> runs;
    for (int i = 0; i < count; ++i) {
        const int64_t n = 1 + int64_t(random()) % longest;
        runs.push_back({source.data() + int64_t(random()) % (bytes - n + 1), n});
    }
    return runs;
}

int threads_of_process() {
    const std::filesystem::directory_iterator tasks("/proc/self/task");
    return int(std::distance(begin(tasks), end(tasks)));
}
// A joined thread may be listed for a moment more.
void expect_threads(int count) {
    for (int i = 0; i < 1000 && threads_of_process() > count; ++i) std::this_thread::sleep_for(1ms);
    EXPECT_EQ(threads_of_process(), count);
}

// Risk: bytes of one chunk in another's place, a buffer overwritten while its chunk is still in use, the last
// piece lost, one thread that does everything.
TEST(ReadRing, HandsOutEveryByteInOrder) {
    constexpr int64_t kBytes = 60000;
    for (const auto& [buffers, threads] : {std::pair{1, 1}, {2, 4}, {5, 2}, {8, 4}, {64, 3}}) {
        SlowSource source(kBytes);
        source.meet = std::min(buffers, threads);
        const std::vector<ReadRing::Run> runs = random_runs(source, kBytes, 60, 5000);
        std::vector<std::byte> memory(size_t(buffers) * 1000 + 7);
        auto ring = ReadRing::start(source, runs, {memory, buffers, threads}).value();
        std::vector<ReadRing::Chunk> held;  // up to all buffers at once
        size_t run = 0;
        int64_t at = 0, chunks = 0;
        const auto give_back = [&] {
            const ReadRing::Chunk& c = held.front();
            ASSERT_EQ(std::memcmp(c.bytes.data(), runs[c.run].view + c.offset, c.bytes.size()), 0)
                << "run " << c.run << " at " << c.offset << ", " << buffers << " buffers";
            held.erase(held.begin());
            ring->release();
        };
        for (;;) {
            if (int(held.size()) == buffers) give_back();
            const std::optional<ReadRing::Chunk> chunk = ring->next().value();
            if (!chunk) break;
            if (at == runs[run].bytes) ++run, at = 0;
            ASSERT_EQ(chunk->run, run);
            ASSERT_EQ(chunk->offset, at);
            at += int64_t(chunk->bytes.size());
            held.push_back(*chunk);
            ++chunks;
        }
        while (!held.empty()) give_back();
        EXPECT_EQ(run, runs.size() - 1);
        EXPECT_EQ(at, runs.back().bytes);
        EXPECT_EQ(source.reads, chunks);
        EXPECT_EQ(source.most_at_once, std::min(buffers, threads));
        EXPECT_FALSE(ring->next().value()) << "the end stays the end";
    }
}

// Risk: an error is swallowed, or handed out behind bytes that were never read; a thread waits for ever or
// outlives the ring.
TEST(ReadRing, AnErrorEndsTheReading) {
    const int before = threads_of_process();
    for (const int64_t fail_at : {0, 1, 9, 29}) {
        SlowSource source(4096);
        source.fail_at = fail_at;
        const std::vector<ReadRing::Run> runs(30, {source.data(), 4096});
        std::vector<std::byte> memory(3 * 4096);
        auto ring = ReadRing::start(source, runs, {memory, 3, 4}).value();
        int64_t good = 0;
        for (;;) {
            const auto chunk = ring->next();
            if (!chunk.ok()) {
                EXPECT_EQ(chunk.error().kind, ErrorKind::bad_input);
                EXPECT_EQ(chunk.error().message, fmt::format("model.bin: read {} fails in a test", fail_at));
                break;
            }
            ASSERT_TRUE(chunk.value()) << "the end, without the error";
            EXPECT_EQ(std::memcmp((*chunk.value()).bytes.data(), source.data(), 4096), 0);
            ++good;
            ring->release();
        }
        EXPECT_LE(good, fail_at);
        EXPECT_FALSE(ring->next().ok()) << "the error stays";
        ring.reset();
        expect_threads(before);
    }
}

// Risk: giving up half-way (the device has failed) hangs, or leaves a thread that writes into freed memory.
TEST(ReadRing, MayBeDroppedAtAnyTime) {
    const int before = threads_of_process();
    for (int taken = 0; taken < 6; ++taken) {
        SlowSource source(100000);
        const std::vector<ReadRing::Run> runs(4, {source.data(), 100000});
        std::vector<std::byte> memory(4 * 1000);
        auto ring = ReadRing::start(source, runs, {memory, 4, 4}).value();
        for (int i = 0; i < taken; ++i) {
            ASSERT_TRUE(ring->next().value());
            if (i % 2) ring->release();
        }
        ring.reset();
        expect_threads(before);
        EXPECT_EQ(source.at_once, 0);
        EXPECT_LE(source.reads, 4 + taken);
    }
}

// Risk: no weights to place is taken for an error, or waited for.
TEST(ReadRing, NothingToRead) {
    SlowSource source(1);
    std::vector<std::byte> memory(16);
    auto ring = ReadRing::start(source, {}, {memory, 2, 4}).value();
    EXPECT_FALSE(ring->next().value());
}

}  // namespace
}  // namespace sparkinfer
