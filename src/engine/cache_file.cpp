#include "engine/cache_file.h"

#include <cstring>

#include "core/file.h"
#include "core/new_file.h"
#include "engine/request_check.h"

namespace sparkinfer {
namespace {

constexpr char kMagic[8] = {'S', 'P', 'R', 'K', 'K', 'E', 'E', 'P'};
constexpr uint32_t kVersion = 1;

struct FileHeader {
    char magic[8];
    uint32_t version, reserved;
    uint64_t identity;
    int64_t page_bytes, state_bytes, nodes;
    uint64_t checksum;  // of what stands before it
};
static_assert(sizeof(FileHeader) == 56);

struct FileNode {
    int64_t parent;
    int32_t tokens, salt;  // counts: tokens, bytes
    int32_t has_state, logged;
    uint64_t checksum;  // of what stands before it and of all that follows
};
static_assert(sizeof(FileNode) == 32);

template <class T>
std::span<const std::byte> bytes_of(const T& value) {
    return std::as_bytes(std::span(&value, 1));
}

}  // namespace

uint64_t hash_bytes(uint64_t seed, std::span<const std::byte> bytes) {
    uint64_t hash = seed ^ (0x9e3779b97f4a7c15ull + bytes.size());
    const auto mix = [&](uint64_t word) {
        hash = (hash ^ word) * 0xff51afd7ed558ccdull;
        hash ^= hash >> 32;
    };
    size_t at = 0;
    for (; at + 8 <= bytes.size(); at += 8) {
        uint64_t word;
        memcpy(&word, bytes.data() + at, 8);
        mix(word);
    }
    uint64_t last = 0;
    if (at < bytes.size()) memcpy(&last, bytes.data() + at, bytes.size() - at);
    mix(last);
    return hash;
}

Result<void> CacheFile::save(PrefixCache& cache, uint64_t identity, const std::string& path) {
    cache.settle();
    std::vector<const PrefixCache::Node*> nodes;
    std::map<const PrefixCache::Node*, int64_t> numbers;
    std::vector<const std::string*> salts;
    cache.visit([&](const std::string& salt, const PrefixCache::Node& node) {
        numbers.emplace(&node, int64_t(nodes.size()));
        nodes.push_back(&node);
        salts.push_back(&salt);
    });
    TRY(NewFile file, NewFile::create(path, 0600));  // it says what was asked
    FileHeader header{
        {}, kVersion, 0, identity, cache.kv_.bytes_each(), cache.states_.bytes_each(), int64_t(nodes.size()),
        0};
    memcpy(header.magic, kMagic, sizeof kMagic);
    header.checksum = hash_bytes(0, bytes_of(header).first(offsetof(FileHeader, checksum)));
    TRY_VOID(file.write(bytes_of(header)));
    std::vector<std::byte> copied[2];
    for (size_t i = 0; i < nodes.size(); ++i) {
        const PrefixCache::Node& n = *nodes[i];
        const bool first = !n.parent->parent;
        const std::string salt = first ? *salts[i] : std::string();
        FileNode record{first ? -1 : numbers.at(n.parent),
                        int32_t(n.tokens.size()),
                        int32_t(salt.size()),
                        !n.state.none(),
                        n.logged,
                        0};
        std::span<const std::byte> parts[] = {
            std::as_bytes(std::span(salt)), std::as_bytes(std::span(n.tokens)), {}, {}};
        for (int p = 0; p < 2; ++p) {
            const PrefixCache::Place& place = p == 0 ? n.page : n.state;
            if (place.none()) continue;
            std::vector<std::byte>& to = copied[p];
            to.resize(size_t(cache.bytes_of(place)));
            if (place.device >= 0) {
                TRY(const Ticket copied,
                    cache.mover_.out({to, cache.device_bytes(place)}, cache.mover_.newest()));
                TRY([[maybe_unused]] const bool there, cache.mover_.done(copied, true));
            }
            parts[2 + p] = place.device >= 0 ? std::span<const std::byte>(to)
                                             : std::span<const std::byte>(place.host.get(), to.size());
        }
        record.checksum = hash_bytes(uint64_t(i), bytes_of(record).first(offsetof(FileNode, checksum)));
        for (const auto& part : parts) record.checksum = hash_bytes(record.checksum, part);
        TRY_VOID(file.write(bytes_of(record)));
        for (const auto& part : parts) TRY_VOID(file.write(part));
    }
    return file.commit_to_disk();
}

struct CacheFile::Entry {
    int64_t parent;
    std::string salt;
    std::vector<TokenId> tokens;
    std::span<const std::byte> page, state;  // state: empty, there is none
    int32_t logged;
    bool whole;  // a page full of tokens
};

Result<std::vector<CacheFile::Entry>> CacheFile::read(const PrefixCache& cache, uint64_t identity,
                                                      const std::string& path,
                                                      std::span<const std::byte> bytes) {
    FileHeader h;
    if (bytes.size() < sizeof h || memcmp(bytes.data(), kMagic, sizeof kMagic) != 0)
        return bad_input("{} is no saved session, expected a file that begins with SPRKKEEP", path);
    memcpy(&h, bytes.data(), sizeof h);
    if (h.version != kVersion)
        return bad_input("{} has format version {}, expected {}", path, h.version, kVersion);
    if (h.checksum != hash_bytes(0, bytes_of(h).first(offsetof(FileHeader, checksum))))
        return bad_input("{} is damaged: the checksum of its header is wrong", path);
    const int64_t page_bytes = cache.kv_.bytes_each(), state_bytes = cache.states_.bytes_each();
    if (h.identity != identity || h.page_bytes != page_bytes || h.state_bytes != state_bytes)
        return bad_input("{} was saved with another model or backend", path);
    std::vector<Entry> entries;
    size_t at = sizeof h;
    const auto take = [&](uint64_t n) {
        const auto part = bytes.subspan(at, size_t(n));
        at += size_t(n);
        return part;
    };
    for (int64_t i = 0; i < h.nodes; ++i) {
        const auto damaged = [&](const char* how) {
            return bad_input("{} is damaged: {} in entry {} of {}", path, how, i, h.nodes);
        };
        if (bytes.size() - at < sizeof(FileNode)) return damaged("it ends");
        FileNode n;
        memcpy(&n, take(sizeof n).data(), sizeof n);
        const bool sound = n.tokens > 0 && n.tokens <= kPageTokens && n.parent >= -1 && n.parent < i &&
                           n.salt >= 0 && n.salt <= kMaxSalt && (n.parent < 0 || n.salt == 0) &&
                           (n.has_state == 0 || (n.has_state == 1 && state_bytes > 0)) && n.logged >= 0 &&
                           n.logged <= kMaxVerifyRows;
        if (!sound) return damaged("a number is out of range");
        const uint64_t sizes[] = {uint64_t(n.salt), 4 * uint64_t(n.tokens), uint64_t(page_bytes),
                                  n.has_state ? uint64_t(state_bytes) : 0};
        if (bytes.size() - at < sizes[0] + sizes[1] + sizes[2] + sizes[3]) return damaged("it ends");
        uint64_t checksum = hash_bytes(uint64_t(i), bytes_of(n).first(offsetof(FileNode, checksum)));
        std::span<const std::byte> parts[4];
        for (int p = 0; p < 4; ++p) {
            parts[p] = take(sizes[p]);
            checksum = hash_bytes(checksum, parts[p]);
        }
        if (checksum != n.checksum) return damaged("the checksum is wrong");
        if (n.parent >= 0 && !entries[size_t(n.parent)].whole) return damaged("something follows an end");
        Entry e{n.parent,
                std::string(reinterpret_cast<const char*>(parts[0].data()), parts[0].size()),
                std::vector<TokenId>(size_t(n.tokens)),
                parts[2],
                parts[3],
                n.logged,
                n.tokens == kPageTokens};
        memcpy(e.tokens.data(), parts[1].data(), parts[1].size());
        entries.push_back(std::move(e));
    }
    if (at != bytes.size())
        return bad_input("{} is damaged: {} bytes follow its last entry", path, bytes.size() - at);
    return entries;
}

// Puts a copy where there is room: on the device, then in the host.
bool CacheFile::place(PrefixCache& cache, PrefixCache::Place& place, std::span<const std::byte> bytes,
                      bool device) {
    if (device) {
        const bool state = place.is_state;
        const int32_t id = state ? cache.states_.pool().take() : cache.kv_.take_page();
        const BlockMove move{state ? cache.states_.bytes(id) : cache.kv_.bytes(id), bytes};
        const Ticket copied = cache.bring_back(std::span(&move, 1));
        const Result<bool> there = cache.mover_.done(copied, true);  // `bytes` are the caller's
        if (!there.ok() && !cache.trouble_) cache.trouble_ = there.error();
        cache.set_device(place, id);
        return true;
    }
    if (cache.host_bytes_ + int64_t(bytes.size()) > cache.limits_.host_bytes) return false;
    return cache.set_host(place, bytes);
}

Result<void> CacheFile::load(PrefixCache& cache, uint64_t identity, const std::string& path) {
    TRY(const MappedFile file, MappedFile::open(path));
    TRY(const std::vector<Entry> entries, read(cache, identity, path, file.bytes()));
    std::vector<PrefixCache::Node*> nodes(entries.size(), nullptr);
    for (size_t i = 0; i < entries.size(); ++i) {
        const Entry& e = entries[i];
        PrefixCache::Node* parent = nullptr;
        if (e.parent < 0) {
            std::unique_ptr<PrefixCache::Node>& root = cache.roots_[e.salt];
            if (!root) root = std::make_unique<PrefixCache::Node>();
            parent = root.get();
        } else {
            parent = nodes[size_t(e.parent)];
        }
        if (!parent) continue;  // there was no room for it
        PrefixCache::Node* node = cache.child(*parent, e.tokens);
        if (!node) {
            node = &cache.make_child(*parent, e.tokens);
            const bool device = cache.kv_.free() > 0 && (!parent->parent || parent->page.device >= 0);
            if (!place(cache, node->page, e.page, device)) {
                cache.discard(*node);
                continue;
            }
        }
        nodes[i] = node;
        if (!e.state.empty() && node->state.none()) {
            const bool device = int32_t(cache.device_states_.size()) < cache.limits_.states &&
                                cache.states_.pool().free() > 0;
            if (place(cache, node->state, e.state, device)) node->logged = e.logged;
        }
        cache.touch(*node);
    }
    // Children before their parents.
    for (auto node = nodes.rbegin(); node != nodes.rend(); ++node)
        if (*node && cache.useless(**node)) cache.discard(**node);
    cache.drop_empty_roots();
    if (cache.trouble()) return *cache.trouble();
    return {};
}

}  // namespace sparkinfer
