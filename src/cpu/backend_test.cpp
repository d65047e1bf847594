#include "cpu/backend.h"

#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <ctime>

#include "cpu/pool.h"

namespace sparkinfer {
namespace {

// Risk: iterations lost or run twice; a worker number out of range; a lost wake-up (the test would hang).
TEST(Pool, RunsEveryIterationOnce) {
    for (int threads : {1, 2, 3, 7}) {
        Pool pool(threads);
        ASSERT_EQ(pool.threads(), threads);
        for (int round = 0; round < 300; ++round) {
            const int64_t n = round % 41, grain = 1 + round % 5;
            std::vector<std::atomic<int>> hits(size_t(n) + 1);
            std::vector<std::atomic<int>> busy(static_cast<size_t>(threads));
            pool.parallel(n, grain, [&](int64_t begin, int64_t end, int worker) {
                ASSERT_TRUE(worker >= 0 && worker < threads);
                ASSERT_EQ(busy[size_t(worker)].fetch_add(1), 0) << "two parts share a worker's scratch";
                for (int64_t i = begin; i < end; ++i) ++hits[size_t(i)];
                --busy[size_t(worker)];
            });
            for (int64_t i = 0; i < n; ++i)
                ASSERT_EQ(hits[size_t(i)].load(), 1) << threads << " " << n << " " << i;
        }
    }
}

// Risk: workers that went to sleep are not woken.
TEST(Pool, WakesSleepers) {
    Pool pool(3);
    for (int round = 0; round < 5; ++round) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
        std::atomic<int> sum{0};
        pool.parallel(3, 1, [&](int64_t begin, int64_t end, int) { sum += int(end - begin); });
        ASSERT_EQ(sum.load(), 3);
    }
}

// Risk: a program that waits for its user keeps the cores busy.
TEST(Pool, TakesNoTimeWhenIdle) {
    const auto processor_ms = [] {
        timespec spent{};
        ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &spent);
        return double(spent.tv_sec) * 1e3 + double(spent.tv_nsec) * 1e-6;
    };
    Pool pool(8);
    pool.parallel(8, 1, [](int64_t, int64_t, int) {});
    std::this_thread::sleep_for(std::chrono::milliseconds(50));  // those that wait have gone to sleep
    const double before = processor_ms();
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    EXPECT_LT(processor_ms() - before, 30);
}

// Risk: absurd requests end the process instead of the request.
TEST(CpuBackend, RefusesWhatCannotBe) {
    EXPECT_EQ(make_cpu_backend({-1}).error().kind, ErrorKind::usage);
    EXPECT_EQ(make_cpu_backend({kMaxCpuThreads + 1}).error().kind, ErrorKind::usage);
    auto backend = make_cpu_backend({1}).value();
    const auto memory = backend->allocate(int64_t(1) << 60, MemoryKind::kv);
    ASSERT_FALSE(memory.ok());
    EXPECT_EQ(memory.error().kind, ErrorKind::resources);
    EXPECT_NE(memory.error().message.find("1152921504606846976"), std::string::npos)
        << memory.error().message;
    // One allocation after the other counts.
    const int64_t most = backend->info().memory_bytes / 2 + 1;
    EXPECT_TRUE(backend->allocate(most, MemoryKind::kv).ok());
    EXPECT_FALSE(backend->allocate(most, MemoryKind::kv).ok());
}

// Risk: memory that is not zero, not aligned or shared between two allocations.
TEST(CpuBackend, MemoryIsZeroedAndItsOwn) {
    auto backend = make_cpu_backend({2}).value();
    EXPECT_EQ(backend->info().name, "cpu");
    std::vector<Memory> all;
    for (int64_t bytes : {int64_t(1), int64_t(0), int64_t(4096), int64_t(100001)}) {
        auto memory = backend->allocate(bytes, MemoryKind::arena);
        ASSERT_TRUE(memory.ok());
        EXPECT_EQ(memory->bytes, bytes);
        EXPECT_TRUE(memory->host);
        EXPECT_EQ(reinterpret_cast<uintptr_t>(memory->data) % 64, 0u);
        for (int64_t i = 0; i < bytes; ++i) ASSERT_EQ(memory->data[i], std::byte{0});
        memset(memory->data, 0xFF, size_t(bytes));
        all.push_back(*memory);
    }
}

// Risk: the step image of an earlier execution is used, or a tape that is gone by then.
TEST(CpuBackend, TapesAreKeptAndStepsCopied) {
    auto backend = make_cpu_backend({2}).value();
    const float table_values[] = {1, 2, 3, 4};  // [4, 1]
    Weight table;
    table.data = table_values;
    table.out = 4;
    table.in = 1;
    Memory arena = backend->allocate(1 << 16, MemoryKind::arena).value();
    Memory step = backend->allocate(1 << 16, MemoryKind::step).value();
    SlotsView slots;
    slots.count = 1;
    slots.max_pages = 1;
    slots.max_tokens = 64;
    slots.stride = slot_bytes(1, 64);
    slots.base = backend->allocate(slots.stride, MemoryKind::slots).value().data;
    Compiled compiled;
    {
        Tape tape({step.data}, slots, arena.data);
        tape.embed(table, 2);
        compiled = backend->compile(tape).value();
    }
    struct {
        StepHeader header{};
        Row rows[2] = {};
    } image;
    image.header.rows = 2;
    image.header.rows_at = sizeof(StepHeader);
    const std::span<const std::byte> bytes{reinterpret_cast<const std::byte*>(&image), sizeof image};
    for (int32_t token : {3, 0, 2}) {
        image.rows[1].token = token;
        image.rows[1].index = 1;
        const Ticket ticket = backend->execute(compiled, bytes).value();
        EXPECT_TRUE(backend->done(ticket, false).value());
        const auto* y = reinterpret_cast<const float*>(arena.data);
        EXPECT_EQ(y[0], 1.0f);
        EXPECT_EQ(y[1], table_values[token]);
        int32_t seen = -1;
        ASSERT_TRUE(backend
                        ->copy(std::as_writable_bytes(std::span(&seen, 1)),
                               std::as_bytes(std::span(slots.history(0) + 1, 1)), ticket)
                        .ok());
        EXPECT_EQ(seen, token);
    }
}

// Risk: a server sees prompts of every length, and memory grows with each that is compiled and forgotten.
TEST(CpuBackend, PlacesOfReleasedTapesAreTakenAgain) {
    auto backend = make_cpu_backend({1}).value();
    Memory arena = backend->allocate(1 << 16, MemoryKind::arena).value();
    Memory step = backend->allocate(1 << 16, MemoryKind::step).value();
    const Tape tape({step.data}, {}, arena.data);
    const Compiled kept = backend->compile(tape).value();
    for (int i = 0; i < 100; ++i) {
        const Compiled next = backend->compile(tape).value();
        EXPECT_NE(next.id, kept.id);
        ASSERT_LT(next.id, 2) << i;
        backend->release(next);
    }
}

}  // namespace
}  // namespace sparkinfer
