// A saved session (engine/cache_file.h). The checksums of most inputs are put right first: damage is found by
// them, and what somebody wrote on purpose has right ones.
#include <cstddef>
#include <cstring>

#include "engine/cache_file.h"
#include "fuzz.h"

using namespace sparkinfer;

extern "C" size_t LLVMFuzzerMutate(uint8_t* data, size_t size, size_t max_size);

namespace {

constexpr uint64_t kIdentity = 7;
constexpr size_t kHeaderBytes = 56, kNodeBytes = 32;

// The pools' memory is the host's.
struct PlainMover final : BlockMover {
    Result<Ticket> out(const BlockMove& move, Ticket) override { return in({&move, 1}); }
    Result<Ticket> in(std::span<const BlockMove> moves) override {
        for (const BlockMove& m : moves) {
            CHECK(m.to.size() == m.from.size(), "{} bytes to {}", m.from.size(), m.to.size());
            std::memcpy(m.to.data(), m.from.data(), m.to.size());
        }
        return Ticket{};
    }
    Ticket newest() const override { return {}; }
    Result<bool> done(Ticket, bool) override { return true; }
    HostBlock host_block(size_t bytes) override { return plain_host_block(bytes); }
};

// Pools of a model with one small attention layer and one small recurrent one. All memory is the pools' own.
struct Pools {
    static constexpr int32_t kPages = 3, kStates = 2;
    std::vector<KvLayer> kv_layers{{nullptr, 0, 1, 1, DType::f32}};
    std::vector<StateLayer> state_layers{{nullptr, 0, 1, 1, 2, 6, 2}};
    std::vector<std::byte> page_memory = std::vector<std::byte>(size_t(kPages) * page_bytes());
    std::vector<std::byte> state_memory = std::vector<std::byte>(size_t(kStates) * state_bytes());
    KvCache kv{kv_layers, DType::f32, {page_memory.data(), int64_t(page_memory.size()), true}, kPages};
    StatePool states{
        state_layers, DType::f32, {state_memory.data(), int64_t(state_memory.size()), true}, kStates};
    PlainMover mover;
    PrefixCache cache{kv, states, {.states = 1, .host_bytes = int64_t(4) * int64_t(page_bytes())}, mover};

    size_t page_bytes() const { return size_t(KvCache::page_bytes(kv_layers, DType::f32)); }
    size_t state_bytes() const { return size_t(StatePool::slot_bytes(state_layers, DType::f32)); }
};

void load(const std::string& path, Pools& pools) {
    const auto loaded = CacheFile::load(pools.cache, kIdentity, path);
    if (!loaded.ok()) check_error(loaded.error());
    pools.cache.check_integrity();
    std::vector<PageList> pages;
    std::vector<int32_t> states;
    pools.cache.collect(pages, states);
    std::vector<const PageList*> lists;
    for (const PageList& list : pages) lists.push_back(&list);
    pools.kv.check_integrity(lists);
}

template <class T>
T read_at(const uint8_t* data, size_t at) {
    T value;
    std::memcpy(&value, data + at, sizeof value);
    return value;
}

void write_hash(uint8_t* data, size_t at, uint64_t hash) { std::memcpy(data + at, &hash, sizeof hash); }

// Follows the records as the reader does and writes the checksum that each should have.
void put_checksums_right(uint8_t* data, size_t size) {
    const auto bytes = std::as_bytes(std::span(data, size));
    if (size < kHeaderBytes) return;
    write_hash(data, kHeaderBytes - 8, hash_bytes(0, bytes.first(kHeaderBytes - 8)));
    static const Pools pools;
    size_t at = kHeaderBytes;
    for (uint64_t i = 0; size - at >= kNodeBytes; ++i) {
        const auto tokens = read_at<int32_t>(data, at + 8), salt = read_at<int32_t>(data, at + 12);
        const auto has_state = read_at<int32_t>(data, at + 16);
        if (tokens < 0 || salt < 0) return;
        const uint64_t parts[] = {uint64_t(salt), 4 * uint64_t(tokens), pools.page_bytes(),
                                  has_state ? pools.state_bytes() : 0};
        const uint64_t total = parts[0] + parts[1] + parts[2] + parts[3];
        if (size - at - kNodeBytes < total) return;
        uint64_t hash = hash_bytes(i, bytes.subspan(at, kNodeBytes - 8));
        size_t from = at + kNodeBytes;
        for (const uint64_t n : parts) {
            hash = hash_bytes(hash, bytes.subspan(from, n));
            from += n;
        }
        write_hash(data, at + kNodeBytes - 8, hash);
        at = from;
    }
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t max_size, unsigned seed) {
    size = LLVMFuzzerMutate(data, size, max_size);
    if (seed % 8 != 0) put_checksums_right(data, size);
    return size;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    static MemoryFile file;
    file.set(text_of(data, size));
    Pools pools;
    load(file.path(), pools);
    load(file.path(), pools);  // onto what is there already
    // What was taken is written and taken again.
    static const std::string saved = fmt::format("/dev/shm/sparkinfer-fuzz-{}.session", ::getpid());
    const auto written = CacheFile::save(pools.cache, kIdentity, saved);
    CHECK(written.ok(), "{}", written.error().message);
    Pools fresh;
    const auto again = CacheFile::load(fresh.cache, kIdentity, saved);
    CHECK(again.ok(), "{}", again.error().message);
    ::unlink(saved.c_str());
    return 0;
}
