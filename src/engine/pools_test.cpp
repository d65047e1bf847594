// The parts below the scheduler: pools, pages, step images, weights.
#include "engine/test_backend.h"
#include "engine/test_model.h"

namespace sparkinfer {
namespace {

// Risk: a count that is off by one goes unnoticed.
TEST(RefPool, NoticesWrongCounts) {
    RefPool pool(4);
    const int32_t a = pool.take();
    pool.share(a);
    std::vector<int32_t> held(4, 0);
    held[size_t(a)] = 2;
    pool.check_integrity(held);
    held[size_t(a)] = 1;
    EXPECT_DEATH(pool.check_integrity(held), "has 2 references and 1 holders");
    pool.release(a);
    pool.release(a);
    EXPECT_DEATH(pool.release(a), "which is free");
    EXPECT_DEATH(pool.share(a), "which is free");
    for (int i = 0; i < 4; ++i) pool.take();
    EXPECT_DEATH(pool.take(), "used up");
}

struct CacheOnHost {
    explicit CacheOnHost(int32_t pages) : bytes(size_t(KvCache::page_bytes(layers, DType::bf16) * pages)) {
        cache = std::make_unique<KvCache>(layers, DType::bf16,
                                          Memory{bytes.data(), int64_t(bytes.size()), true}, pages);
    }
    std::vector<KvLayer> layers = {{nullptr, 0, 2, 64, DType::f32}, {nullptr, 0, 1, 128, DType::f32}};
    std::vector<std::byte> bytes;
    std::unique_ptr<KvCache> cache;
};

// Risk: layers overlap in a page, or a page in the next.
TEST(KvCache, LayersShareOneBlockAPage) {
    CacheOnHost c(3);
    const int64_t first = 2 * 2 * 64 * 64 * 2, second = 2 * 1 * 64 * 128 * 2;
    EXPECT_EQ(KvCache::page_bytes(c.layers, DType::bf16), first + second);
    const std::vector<KvLayer>& layers = c.cache->layers();
    EXPECT_EQ(layers[0].pages, c.bytes.data());
    EXPECT_EQ(layers[1].pages, c.bytes.data() + first);
    for (const KvLayer& l : layers) {
        EXPECT_EQ(l.page_bytes, first + second);
        EXPECT_EQ(l.dtype, DType::bf16);
    }
}

// Risk: a shared last page is written in place, or a full one is copied for nothing.
TEST(KvCache, CopiesOnlyAPartialSharedPage) {
    CacheOnHost c(5);
    PageList a;
    ASSERT_TRUE(c.cache->reserve(a, 130));
    EXPECT_EQ(a.size(), 3u);
    PageList b = c.cache->share(a, 100);
    EXPECT_EQ(b, PageList(a.begin(), a.begin() + 2));
    EXPECT_FALSE(c.cache->needs_copy(a, 130));
    EXPECT_TRUE(c.cache->needs_copy(b, 100));
    const int32_t old = b[1];
    const auto copy = c.cache->make_writable(b, 100);
    ASSERT_TRUE(copy);
    EXPECT_EQ(copy->entry, 1);
    EXPECT_NE(b[1], old);
    EXPECT_EQ(copy->from.data(), c.bytes.data() + old * KvCache::page_bytes(c.layers, DType::bf16));
    EXPECT_EQ(int64_t(copy->to.size()), KvCache::page_bytes(c.layers, DType::bf16));
    EXPECT_FALSE(c.cache->make_writable(b, 100));
    const PageList* lists[] = {&a, &b};
    c.cache->check_integrity(lists);
    EXPECT_FALSE(c.cache->reserve(b, 64 * 5));
    EXPECT_EQ(b.size(), 2u) << "a failed reservation must change nothing";
    c.cache->release(a);
    c.cache->truncate(b, 64);
    EXPECT_EQ(c.cache->free(), 4);
    EXPECT_DEATH(c.cache->check_integrity({}), "references");
}

// Risk: recurrent layers overlap in a slot.
TEST(StatePool, LayersFollowEachOther) {
    const std::vector<StateLayer> layers(3, StateLayer{nullptr, 0, 1, 2, 128, 512, 4});
    const int64_t bytes = StatePool::slot_bytes(layers, DType::bf16);
    // S alone is smaller: 2 value heads of 128 × 128 cells in 3 layers.
    EXPECT_EQ(StatePool::slot_bytes(layers, DType::f32) - bytes, 3 * 2 * 128 * 128 * 2);
    std::vector<std::byte> memory(size_t(bytes) * 2);
    const StatePool pool(layers, DType::bf16, {memory.data(), int64_t(memory.size()), true}, 2);
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(pool.layers()[size_t(i)].states, memory.data() + i * bytes / 3);
        EXPECT_EQ(pool.layers()[size_t(i)].state_bytes, bytes);
        EXPECT_EQ(pool.layers()[size_t(i)].dtype, DType::bf16);
    }
}

// Risk: a list lands on another, or a decode step outgrows what one small copy carries.
TEST(StepImage, ReadsBackWhatWasWritten) {
    const StepLimits limits{.rows = 64, .segments = 64, .saves = 4, .changes = 70, .payload_words = 200};
    StepImage image(limits);
    for (int32_t i = 0; i < 64; ++i) {
        const uint32_t word = 1000u + uint32_t(i);
        image.add_change(i, 7 + i, std::span(&word, 1));
        image.add_segment({i, i, 1, i, 100 + i, 0, 0, 0});
        image.add_row({i * 3, i, i, {i, i, i}, i % 2 ? uint32_t(kRowOutput) : 0u, -1});
    }
    image.add_save({63, 5});
    EXPECT_TRUE(image.fits(6, 136));
    EXPECT_FALSE(image.fits(7, 0));
    EXPECT_FALSE(image.fits(0, 137));
    std::vector<std::byte> buffer(size_t(StepImage::bytes_for(limits)));
    const auto used = image.write(buffer);
    EXPECT_LE(used.size(), 16u * 1024);
    const StepView view{used.data()};
    EXPECT_EQ(view.header().bytes, int32_t(used.size()));
    EXPECT_EQ(view.header().rows, 64);
    EXPECT_EQ(view.header().outputs, 32);
    for (int i = 0; i < 64; ++i) {
        EXPECT_EQ(view.rows()[i].token, i * 3);
        EXPECT_EQ(view.segments()[i].state_out, 100 + i);
        EXPECT_EQ(view.changes()[i].word, 7 + i);
        EXPECT_EQ(view.payload()[view.changes()[i].payload], 1000u + uint32_t(i));
    }
    for (int i = 0; i < 32; ++i) EXPECT_EQ(view.outputs()[i], 2 * i + 1);
    EXPECT_EQ(view.saves()[0].row, 63);
    const std::vector<int32_t> some = {3, 9};
    const StepView other{image.write(buffer, some).data()};
    EXPECT_EQ(other.header().outputs, 2);
    EXPECT_EQ(other.outputs()[1], 9);
    image.add_row({});
    EXPECT_DEATH(image.write(buffer), "a step of 65 rows");
}

// Places each group at new addresses, as a device does, and counts.
class MovingBackend final : public OverCpu {
  public:
    Result<std::vector<Weight>> place(const WeightGroup& group, ByteSource& source) override {
        std::vector<Weight> placed = group.weights;
        for (Weight& w : placed) {
            copies.push_back(std::make_unique<std::vector<std::byte>>(size_t(weight_bytes(w))));
            TRY_VOID(source.read(w.data, *copies.back()));
            w.data = copies.back()->data();
        }
        ++groups;
        return placed;
    }
    std::vector<std::unique_ptr<std::vector<std::byte>>> copies;
    int groups = 0;
};

// Risk: a tape keeps a host address, or a weight is placed again for every tape.
TEST(Weights, TapesUseThePlacedOnes) {
    MovingBackend backend;
    std::vector<std::pair<int64_t, int64_t>> progress;
    auto engine = LiveEngine::make(
                      nullptr, std::make_unique<TinyModel>(TinyKind::hybrid), backend, {.context = 512}, {},
                      {.placed = [&](int64_t done, int64_t total) { progress.emplace_back(done, total); }})
                      .value();
    const int groups = backend.groups;
    EXPECT_GT(groups, 5);
    ASSERT_FALSE(progress.empty());
    EXPECT_EQ(progress.back().first, progress.back().second);
    EXPECT_TRUE(std::is_sorted(progress.begin(), progress.end()));
    const Tape tape = engine->record(4, OutputKind::select);
    for (const Instr& i : tape.instrs())
        visit(i, [&](const auto& op) {
            for_each_weight(op, [&](const Weight& w) {
                const bool placed = std::any_of(backend.copies.begin(), backend.copies.end(),
                                                [&](const auto& copy) { return copy->data() == w.data; });
                EXPECT_TRUE(placed) << op_name(i.code);
            });
        });
    const Request r = random_request(70, 10, 2);
    const RequestId id = engine->submit(r).value();
    Answers answers;
    run_all(*engine, answers);
    EXPECT_EQ(answers[id], alone(TinyKind::hybrid, r));
    EXPECT_EQ(backend.groups, groups);
}

// Risk: a server that has seen every length of step holds a tape for each.
TEST(Runner, TapesAreFew) {
    TestEngine e = make_engine({.options = {.context = 1024, .slots = 2, .chunk = 512},
                                .tuning = {.pipeline = 1, .pad_to_bucket = true}});
    Answers answers;
    for (int length = 1; length < 700; length += 13) {
        e->submit(random_request(length, 2, 1)).value();
        e->submit(random_request(length / 2 + 1, 2, 1)).value();
        run_all(*e.engine, answers);
    }
    EXPECT_LE(e->runner().tapes(), 2 * 6 + kLargeTapes);
    EXPECT_GT(e->runner().tapes(), kLargeTapes) << "steps of so many lengths fill the room";
    EXPECT_EQ(e->runner().row_class(3), 4);
    EXPECT_EQ(e->runner().row_class(64), 64);
    EXPECT_EQ(e->runner().row_class(65), 72);
}

// Risk: where steps are not padded, every count of rows with every kind of output stays compiled.
TEST(Runner, UnpaddedTapesAreFewToo) {
    TestEngine e = make_engine({.options = {.context = 1024, .slots = 2, .chunk = 64},
                                .tuning = {.pipeline = 1, .pad_to_bucket = false}});
    Answers answers;
    for (int length = 1; length < 128; ++length) {
        for (const int32_t logprobs : {-1, 0}) {
            Request r = random_request(length, 2, 1);
            r.logprobs = logprobs;
            e->submit(r).value();
            run_all(*e.engine, answers);
        }
    }
    EXPECT_LE(e->runner().tapes(), kSmallTapes + kLargeTapes);
    EXPECT_GE(e->runner().tapes(), kSmallTapes) << "steps of so many lengths fill the room";
}

}  // namespace
}  // namespace sparkinfer
