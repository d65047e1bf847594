// cache_tiers.cpp — where kept pages and states lie, and how they give way: to the host, then for good.
#include <algorithm>
#include <new>

#include "engine/prefix_cache.h"

namespace sparkinfer {
namespace {

constexpr size_t kRemembered = 1 << 16;  // hashes of what is gone

}  // namespace

std::span<std::byte> PrefixCache::device_bytes(const Place& place) const {
    return place.is_state ? states_.bytes(place.device) : kv_.bytes(place.device);
}

int64_t PrefixCache::bytes_of(const Place& place) const {
    return place.is_state ? states_.bytes_each() : kv_.bytes_each();
}

void PrefixCache::enlist(Place& place, std::list<Place*>& list) {
    place.list = &list;
    place.at = list.insert(list.end(), &place);
}

// Takes over one reference to `id`; a host copy goes.
void PrefixCache::set_device(Place& place, int32_t id) {
    forget(place);
    place.device = id;
    enlist(place, place.is_state ? device_states_ : device_pages_);
}

void PrefixCache::forget(Place& place) {
    if (place.list) place.list->erase(place.at);
    place.list = nullptr;
    if (place.host) host_bytes_ -= bytes_of(place);
    place.host.reset();
    if (place.device >= 0) {
        if (place.is_state)
            states_.pool().release(place.device);
        else
            kv_.release_page(place.device);
    }
    place.device = -1;
}

void PrefixCache::move(std::span<const BlockMove> moves) {
    if (moves.empty() || trouble_) return;
    const Result<void> moved = mover_(moves);
    if (!moved.ok()) trouble_ = moved.error();
}

// Not what the step that is being planned reads or writes, nor what is about to be restored.
bool PrefixCache::may_move(const Place& place) const {
    return place.node->used != now_ && place.node->pins == 0;
}

// Whether giving way frees it on the device.
bool PrefixCache::frees(const Place& place) const {
    return may_move(place) &&
           (place.is_state ? states_.pool().refs(place.device) == 1 : kv_.refs(place.device) == 1);
}

std::vector<PrefixCache::Place*> PrefixCache::oldest(const std::list<Place*>& list, int32_t n) const {
    std::vector<Place*> found;
    for (Place* place : list) {
        if (int32_t(found.size()) >= n) break;
        if (frees(*place)) found.push_back(place);
    }
    return found;
}

bool PrefixCache::make_host_room(int64_t bytes) {
    if (bytes > limits_.host_bytes || trouble_) return false;
    while (host_bytes_ + bytes > limits_.host_bytes) {
        const auto found = std::find_if(host_.begin(), host_.end(), [&](Place* p) { return may_move(*p); });
        if (found == host_.end()) return false;
        ++evictions_;
        give_up(**found);
    }
    return true;
}

// A copy in the host. REQUIRES: room for it. False: the machine has no memory left.
bool PrefixCache::set_host(Place& place, std::span<const std::byte> bytes) {
    HostBlock block = host_block_(bytes.size());
    if (!block) return false;
    std::copy(bytes.begin(), bytes.end(), block.get());
    place_host(place, std::move(block));
    return true;
}

void PrefixCache::place_host(Place& place, HostBlock block) {
    forget(place);
    place.host = std::move(block);
    host_bytes_ += bytes_of(place);
    enlist(place, host_);
}

// REQUIRES: room in the host for all of them. False, and nothing changed: the machine has no memory left.
bool PrefixCache::to_host(std::span<Place* const> places) {
    std::vector<BlockMove> moves;
    std::vector<HostBlock> blocks;
    for (const Place* place : places) {
        const std::span<std::byte> from = device_bytes(*place);
        blocks.push_back(host_block_(from.size()));
        if (!blocks.back()) return false;
        moves.push_back({{blocks.back().get(), from.size()}, from});
    }
    move(moves);
    for (size_t i = 0; i < places.size(); ++i) place_host(*places[i], std::move(blocks[i]));
    evictions_ += int64_t(places.size());
    return true;
}

void PrefixCache::evict(std::list<Place*>& list, int32_t n) {
    const int64_t each = &list == &device_states_ ? states_.bytes_each() : kv_.bytes_each();
    while (n > 0) {
        auto victims = oldest(list, limits_.host_bytes > 0 ? n : 1);
        if (victims.empty()) return;
        const int64_t count = int64_t(victims.size());
        // Making room may take some of them.
        if (make_host_room(count * each)) {
            victims = oldest(list, int32_t(count));
            if (victims.empty()) return;
            if (to_host(victims)) {
                n -= int32_t(victims.size());
                continue;
            }
        }
        // For good, one by one: what hangs below goes with it.
        const size_t before = list.size();
        ++evictions_;
        victims = oldest(list, 1);
        if (victims.empty()) return;
        give_up(*victims.front());
        n -= int32_t(before - list.size());
    }
}

bool PrefixCache::make_room(int32_t pages, const Match* keep) {
    if (kv_.free() >= pages) return true;
    if (keep)
        for (Node* node : keep->path) ++node->pins;
    const auto count = std::count_if(device_pages_.begin(), device_pages_.end(),
                                     [&](const Place* place) { return frees(*place); });
    if (kv_.free() + count >= pages) {
        // What gives way may hold others' last references too: count what is free, not what has gone.
        while (kv_.free() < pages && !oldest(device_pages_, 1).empty())
            evict(device_pages_, pages - kv_.free());
    }
    if (keep)
        for (Node* node : keep->path) --node->pins;
    return kv_.free() >= pages;
}

bool PrefixCache::make_state_room(int32_t states, const Match* keep) {
    const RefPool& pool = states_.pool();
    if (pool.free() >= states) return true;
    if (keep)
        for (Node* node : keep->path) ++node->pins;
    const auto count = std::count_if(device_states_.begin(), device_states_.end(),
                                     [&](const Place* place) { return frees(*place); });
    if (pool.free() + count >= states) {
        while (pool.free() < states && !oldest(device_states_, 1).empty())
            evict(device_states_, states - pool.free());
    }
    if (keep)
        for (Node* node : keep->path) --node->pins;
    return pool.free() >= states;
}

// Whether one more state may be kept, after another one has given way if need be.
bool PrefixCache::state_in_budget() {
    if (int32_t(device_states_.size()) < limits_.states) return true;
    const bool moves = make_host_room(states_.bytes_each());
    const auto found = std::find_if(device_states_.begin(), device_states_.end(),
                                    [&](const Place* place) { return may_move(*place); });
    if (found == device_states_.end()) return int32_t(device_states_.size()) < limits_.states;
    Place* const victim = *found;
    if (moves && to_host(std::span(&victim, 1))) return true;
    ++evictions_;
    give_up(*victim);
    return true;
}

void PrefixCache::give_up(Place& place) {
    Node& node = *place.node;
    if (!place.is_state) return drop(node);
    node.state_gone = true;
    forget(place);
    prune(&node);
}

void PrefixCache::remember(const Node& node) {
    if (!gone_.insert(node.path).second) return;
    gone_order_.push_back(node.path);
    if (gone_order_.size() <= kRemembered) return;
    gone_.erase(gone_order_.front());
    gone_order_.pop_front();
}

void PrefixCache::forget_all(Node& node) {
    std::vector<Node*> open{&node};
    while (!open.empty()) {
        Node* n = open.back();
        open.pop_back();
        if (n->parent) remember(*n);
        forget(n->page);
        forget(n->state);
        for (auto& [tokens, child] : n->children) open.push_back(child.get());
    }
}

// A node and all behind it.
void PrefixCache::discard(Node& node) {
    Node& parent = *node.parent;
    forget_all(node);
    parent.tails -= int32_t(node.tokens.size()) < kPageTokens;
    parent.children.erase(parent.children.find(std::span<const TokenId>(node.tokens)));
}

void PrefixCache::drop(Node& node) {
    Node* const parent = node.parent;
    discard(node);
    prune(parent);
}

// With recurrent layers, pages that lead to no state are of no use.
bool PrefixCache::useless(const Node& node) const {
    return states_.used() && node.children.empty() && node.state.none() && node.pins == 0;
}

void PrefixCache::prune(Node* node) {
    while (node->parent && useless(*node)) {
        Node* const parent = node->parent;
        discard(*node);
        node = parent;
    }
    if (!node->parent && node->children.empty()) drop_empty_roots();
}

void PrefixCache::drop_empty_roots() {
    std::erase_if(roots_, [](const auto& entry) { return entry.second->children.empty(); });
}

void PrefixCache::clear() {
    for (auto& [salt, root] : roots_) forget_all(*root);
    roots_.clear();
    gone_.clear();
    gone_order_.clear();
    trouble_.reset();
}

void PrefixCache::check_integrity() const {
    size_t pages = 0, states = 0, host = 0;
    int64_t host_bytes = 0;
    visit([&](const std::string&, const Node& node) {
        CHECK(node.pins == 0, "a kept page is still pinned");
        CHECK(!node.page.none(), "a kept page is nowhere");
        CHECK(node.end == node.parent->end + int32_t(node.tokens.size()), "a kept page ends at {}", node.end);
        const bool leaf = node.children.empty();
        CHECK(!states_.used() || !leaf || !node.state.none(), "kept pages lead to no state");
        for (const Place* place : {&node.page, &node.state}) {
            (place->is_state ? states : pages) += place->device >= 0;
            host += place->host != nullptr;
            host_bytes += place->host ? bytes_of(*place) : 0;
            CHECK(place->device < 0 || !place->host, "kept twice");
        }
    });
    CHECK(pages == device_pages_.size() && states == device_states_.size() && host == host_.size(),
          "{} pages, {} states, {} host blocks listed; {}, {}, {} kept", device_pages_.size(),
          device_states_.size(), host_.size(), pages, states, host);
    CHECK(host_bytes == host_bytes_ && host_bytes_ <= std::max<int64_t>(0, limits_.host_bytes),
          "{} bytes in the host, {} counted, at most {}", host_bytes, host_bytes_, limits_.host_bytes);
    CHECK(int32_t(device_states_.size()) <= limits_.states, "{} states kept, at most {}",
          device_states_.size(), limits_.states);
}

}  // namespace sparkinfer
