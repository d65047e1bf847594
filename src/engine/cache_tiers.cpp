// cache_tiers.cpp — where kept pages and states lie, and how they give way: to the host, then for good.
#include <algorithm>
#include <new>

#include "engine/prefix_cache.h"

namespace sparkinfer {
namespace {

constexpr size_t kRemembered = 1 << 16;  // hashes of what is gone
constexpr size_t kStepsKept = 8;         // more than are ever queued at once

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
    place.written = now_;
    enlist(place, place.is_state ? device_states_ : device_pages_);
}

void PrefixCache::forget(Place& place) {
    if (place.list) place.list->erase(place.at);
    place.list = nullptr;
    if (place.host) release_host(place);
    if (place.device >= 0) {
        if (place.is_state)
            states_.pool().release(place.device);
        else
            kv_.release_page(place.device);
    }
    place.device = -1;
}

// Whether nothing reads or writes for that copy any more.
bool PrefixCache::over(Ticket copied) const {
    Result<bool> done = mover_.done(copied, false);
    return !done.ok() || *done;
}

void PrefixCache::release_host(Place& place) {
    host_bytes_ -= bytes_of(place);
    if (!over(place.copied)) held_.push_back({place.copied, std::move(place.host)});
    place.host.reset();
    place.copied = {};
    place.arriving = false;
}

void PrefixCache::release_arrived() {
    std::erase_if(held_, [&](const Held& held) { return over(held.ticket); });
}

void PrefixCache::launched() {
    steps_.emplace_back(now_++, mover_.newest());
    if (steps_.size() > kStepsKept) steps_.pop_front();
    release_arrived();
}

// What must have completed before it can be read on the device.
Ticket PrefixCache::written_by(const Place& place) const {
    if (steps_.empty() || place.written > steps_.back().first) return mover_.newest();
    const int64_t back = steps_.back().first - place.written;  // steps
    return back < int64_t(steps_.size()) ? steps_[steps_.size() - 1 - size_t(back)].second : Ticket{};
}

Ticket PrefixCache::bring_back(std::span<const BlockMove> moves) {
    if (moves.empty() || trouble_) return {};
    Result<Ticket> copied = mover_.in(moves);
    if (copied.ok()) return *copied;
    trouble_ = copied.error();
    return {};
}

// Waits for what is on its way to the host. False: it will never be there.
bool PrefixCache::arrived(Place& place) {
    if (!place.arriving) return true;
    if (!mover_.done(place.copied, true).ok()) return false;
    place.arriving = false;
    return true;
}

// What a match needs of the host and the host has not got.
PrefixCache::Place* PrefixCache::find_lost(const Match& match) {
    for (Node* node : match.path)
        if (node->page.host && !arrived(node->page)) return &node->page;
    if (match.length == 0) return nullptr;
    Place& state = match.path.back()->state;
    return state.host && !arrived(state) ? &state : nullptr;
}

// Waits for all that is on its way to the host; what does not arrive is given up.
void PrefixCache::settle() {
    for (bool lost = true; lost;) {
        const auto found =
            std::find_if(host_.begin(), host_.end(), [&](Place* place) { return !arrived(*place); });
        lost = found != host_.end();
        if (!lost) break;
        ++evictions_;
        give_up(**found);
    }
    for (const Held& held : held_) (void)mover_.done(held.ticket, true);
    held_.clear();
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
    HostBlock block = mover_.host_block(bytes.size());
    if (!block) return false;
    std::copy(bytes.begin(), bytes.end(), block.get());
    place_host(place, std::move(block), {});
    return true;
}

// `arrival`: of the copy that fills the block; none: it is filled.
void PrefixCache::place_host(Place& place, HostBlock block, Ticket arrival) {
    forget(place);
    place.host = std::move(block);
    place.copied = arrival;
    place.arriving = arrival.id > 0;
    host_bytes_ += bytes_of(place);
    enlist(place, host_);
}

// How many of them are on their way, the first ones: fewer than all where the machine has no memory left or a
// copy cannot be made. REQUIRES: room in the host for all of them.
int32_t PrefixCache::to_host(std::span<Place* const> places) {
    int32_t moved = 0;
    for (Place* place : places) {
        const std::span<std::byte> from = device_bytes(*place);
        HostBlock block = mover_.host_block(from.size());
        if (!block) break;
        Result<Ticket> copied = mover_.out({{block.get(), from.size()}, from}, written_by(*place));
        if (!copied.ok()) break;
        place_host(*place, std::move(block), *copied);
        ++moved;
    }
    evictions_ += moved;
    return moved;
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
            if (const int32_t moved = to_host(victims); moved > 0) {
                n -= moved;
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
    if (moves && to_host(std::span(&victim, 1)) == 1) return true;
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
    settle();
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
