// prefix_cache.cpp — finding, keeping and restoring; giving way is cache_tiers.cpp.
#include "engine/prefix_cache.h"

#include <algorithm>

namespace sparkinfer {
namespace {

constexpr int32_t kLeastTokens = 16;  // fewer are computed as fast as they are found

uint64_t add_to_path(uint64_t path, TokenId token) {
    uint64_t x = (path ^ uint64_t(uint32_t(raw(token)))) * 0x9e3779b97f4a7c15ull;
    x ^= x >> 29;
    return x * 0xbf58476d1ce4e5b9ull + 1;
}

int32_t common_prefix(std::span<const TokenId> a, std::span<const TokenId> b) {
    return int32_t(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

PrefixCache::PrefixCache(KvCache& kv, StatePool& states, const CacheLimits& limits, BlockMover& mover)
    : kv_(kv), states_(states), limits_(limits), mover_(mover) {}

PrefixCache::~PrefixCache() { clear(); }

PrefixCache::Node* PrefixCache::child(Node& parent, std::span<const TokenId> tokens) {
    const auto found = parent.children.find(tokens);
    return found == parent.children.end() ? nullptr : found->second.get();
}

PrefixCache::Node& PrefixCache::make_child(Node& parent, std::span<const TokenId> tokens) {
    auto node = std::make_unique<Node>();
    node->tokens.assign(tokens.begin(), tokens.end());
    node->parent = &parent;
    node->end = parent.end + int32_t(tokens.size());
    node->path = parent.path;
    for (TokenId token : tokens) node->path = add_to_path(node->path, token);
    node->page.node = node->state.node = node.get();
    node->state.is_state = true;
    parent.tails += int32_t(tokens.size()) < kPageTokens;
    return *parent.children.emplace(node->tokens, std::move(node)).first->second;
}

// The child with the longest common beginning: one of the two neighbours in the order of the tokens.
std::pair<PrefixCache::Node*, int32_t> PrefixCache::nearest_child(const Node& node,
                                                                  std::span<const TokenId> rest) const {
    std::pair<Node*, int32_t> nearest{nullptr, 0};
    const auto consider = [&](const auto& entry) {
        const int32_t common = common_prefix(entry.first, rest);
        if (!nearest.first || common > nearest.second) nearest = {entry.second.get(), common};
    };
    const auto above = node.children.lower_bound(rest);
    if (above != node.children.end()) consider(*above);
    if (above != node.children.begin()) consider(*std::prev(above));
    return nearest;
}

// The longest end of a sequence behind `node` that `rest` goes on from.
PrefixCache::Node* PrefixCache::tail_with_state(const Node& node, std::span<const TokenId> rest) const {
    if (node.tails == 0) return nullptr;
    for (int32_t n = std::min(kPageTokens - 1, int32_t(rest.size()) - 1); n > 0; --n) {
        const auto found = node.children.find(rest.first(size_t(n)));
        if (found != node.children.end() && !found->second->state.none()) return found->second.get();
    }
    return nullptr;
}

PrefixCache::Match PrefixCache::find(const std::string& salt, std::span<const TokenId> tokens) {
    for (;;) {
        Match match = look_up(salt, tokens);
        Place* const lost = find_lost(match);
        if (!lost) return match;
        ++evictions_;
        give_up(*lost);
    }
}

PrefixCache::Match PrefixCache::look_up(const std::string& salt, std::span<const TokenId> tokens) {
    Match match;
    const auto root = roots_.find(salt);
    if (root == roots_.end()) {
        match.admission = {0, CacheMiss::empty, "nothing is kept that this request may share"};
        return match;
    }
    Node* deepest = root->second.get();
    const auto rest = [&] { return tokens.subspan(size_t(deepest->end)); };
    while (rest().size() >= size_t(kPageTokens)) {
        Node* next = child(*deepest, rest().first(size_t(kPageTokens)));
        if (!next) break;
        deepest = next;
    }
    const auto [nearest, common] = nearest_child(*deepest, rest());
    const bool ended = nearest ? common == int32_t(nearest->tokens.size()) : true;
    find_point(match, *deepest, tokens, deepest->end + common);
    explain(match, *deepest, tokens, deepest->end + common, ended);
    if (match.length == 0) return match;
    touch(*match.path.back());
    for (const Node* node : match.path) {
        const bool whole = node->end <= match.length && match.length >= node->parent->end + kPageTokens;
        match.shared_pages += whole && node->page.device >= 0;
        match.loads_tail = match.loads_tail || (!whole && node->page.device < 0);
        match.from_host = match.from_host || node->page.device < 0;
    }
    match.from_host = match.from_host || match.path.back()->state.host != nullptr;
    return match;
}

void PrefixCache::find_point(Match& match, Node& deepest, std::span<const TokenId> tokens, int32_t common) {
    const auto longest = int32_t(tokens.size()) - 1;  // one row must be left to choose from
    Node* last = nullptr;
    if (states_.used()) {
        for (Node* node = &deepest; node && !last; node = node->parent) {
            if (Node* tail = tail_with_state(*node, tokens.subspan(size_t(node->end))))
                last = tail;
            else if (node->end > 0 && node->end <= longest && !node->state.none())
                last = node;
        }
        match.length = last ? last->end : 0;
    } else {
        match.length = std::min(common, longest);
        if (limits_.granule > kPageTokens) match.length = match.length / limits_.granule * limits_.granule;
        last = &deepest;
        if (match.length > deepest.end)
            last = nearest_child(deepest, tokens.subspan(size_t(deepest.end))).first;
    }
    if (match.length < kLeastTokens) {
        match.length = 0;
        return;
    }
    while (last->parent->end >= match.length) last = last->parent;
    for (Node* node = last; node->parent; node = node->parent) match.path.push_back(node);
    std::reverse(match.path.begin(), match.path.end());
}

// `common`: tokens shared with the nearest kept sequence, which ended there or went on differently.
void PrefixCache::explain(Match& match, const Node& deepest, std::span<const TokenId> tokens, int32_t common,
                          bool ended) const {
    Admission& a = match.admission;
    a.cached_tokens = match.length;
    const auto size = int32_t(tokens.size());
    const int32_t usable = std::min(common, size - 1);
    if (usable - match.length >= kPageTokens) {
        a.miss = CacheMiss::no_checkpoint;
        for (const Node* node = &deepest; node->end > match.length; node = node->parent)
            if (node->state_gone) a.miss = CacheMiss::evicted;
    } else if (was_evicted(deepest, tokens)) {
        a.miss = CacheMiss::evicted;
    } else if ((!ended && common < size) || common == 0) {
        a.miss = CacheMiss::diverged;
    }
    a.detail =
        fmt::format("the nearest kept sequence has the first {} of {} tokens in common and {}", common, size,
                    common == size ? "holds them all"
                    : ended        ? "ends there"
                                   : "goes on differently");
    if (usable - match.length >= kPageTokens)
        a.detail += fmt::format("; the nearest point to start from is behind {}", match.length);
}

bool PrefixCache::was_evicted(const Node& parent, std::span<const TokenId> tokens) const {
    uint64_t path = parent.path;
    for (size_t i = size_t(parent.end); i < std::min(tokens.size(), size_t(parent.end + kPageTokens)); ++i) {
        path = add_to_path(path, tokens[i]);
        if (gone_.contains(path)) return true;
    }
    return false;
}

// Leaves first, so that they stay older than their parents.
void PrefixCache::touch(Node& node) {
    const auto renew = [](Place& place) {
        if (place.list) place.list->splice(place.list->end(), *place.list, place.at);
    };
    renew(node.state);
    for (Node* n = &node; n->parent; n = n->parent) renew(n->page);
}

void PrefixCache::insert(const std::string& salt, std::span<const TokenId> tokens, const PageList& pages,
                         int32_t state, int32_t logged, bool pending) {
    CHECK(states_.used() == (state >= 0), "a point with state {}", state);
    CHECK(pages_for(int64_t(tokens.size())) <= int32_t(pages.size()), "{} pages of {} tokens", pages.size(),
          tokens.size());
    if (tokens.empty()) return;
    std::unique_ptr<Node>& root = roots_[salt];
    if (!root) root = std::make_unique<Node>();
    Node* node = root.get();
    for (size_t i = 0; node->end < int32_t(tokens.size()); ++i) {
        const auto rest = tokens.subspan(size_t(node->end));
        const auto part = rest.first(std::min(rest.size(), size_t(kPageTokens)));
        Node* next = child(*node, part);
        node = next ? next : &make_child(*node, part);
        if (pending) node->used = now_;
        if (node->page.device >= 0) continue;
        kv_.share_page(pages[i]);
        set_device(node->page, pages[i]);
    }
    touch(*node);
    if (state < 0) return;
    ++node->pins;
    if (node->state.device < 0 && state_in_budget()) {
        states_.pool().share(state);
        set_device(node->state, state);
        node->logged = logged;
        node->state_gone = false;
    }
    --node->pins;
    prune(node);
}

std::optional<int32_t> PrefixCache::take_state(int32_t promised) {
    if (!state_in_budget() || states_.pool().free() <= std::max(0, promised)) return std::nullopt;
    return states_.pool().take();
}

Snapshot PrefixCache::restore(const Match& match) {
    Snapshot point;
    std::vector<BlockMove> moves;
    std::vector<std::pair<Place*, int32_t>> loaded;
    for (Node* node : match.path) {
        node->used = now_;
        if (node->page.device >= 0) continue;
        const int32_t page = kv_.take_page();
        loaded.emplace_back(&node->page, page);
        moves.push_back({kv_.bytes(page), {node->page.host.get(), kv_.bytes(page).size()}});
    }
    Node& last = *match.path.back();
    if (states_.used()) {
        point.logged = last.logged;
        point.state = last.state.device;
        if (point.state >= 0) {
            states_.pool().share(point.state);
        } else {
            // It goes to the sequence alone, which writes on in it; the host keeps its copy.
            point.state = states_.pool().take();
            const std::span<std::byte> to = states_.bytes(point.state);
            moves.push_back({to, {last.state.host.get(), to.size()}});
        }
    }
    const Ticket copied = bring_back(moves);
    for (const auto& [place, page] : loaded) {
        place->copied = copied;
        set_device(*place, page);
    }
    if (last.state.host) last.state.copied = copied;
    for (const Node* node : match.path) {
        kv_.share_page(node->page.device);
        point.pages.push_back(node->page.device);
    }
    touch(last);
    return point;
}

void PrefixCache::visit(const std::function<void(const std::string&, const Node&)>& visitor) const {
    for (const auto& [salt, root] : roots_) {
        std::vector<const Node*> open{root.get()};
        while (!open.empty()) {
            const Node* node = open.back();
            open.pop_back();
            if (node->parent) visitor(salt, *node);
            for (const auto& [tokens, child] : node->children) open.push_back(child.get());
        }
    }
}

void PrefixCache::collect(std::vector<PageList>& pages, std::vector<int32_t>& states) const {
    PageList& list = pages.emplace_back();
    for (const Place* place : device_pages_) list.push_back(place->device);
    for (const Place* place : device_states_) states.push_back(place->device);
}

void PrefixCache::add_stats(EngineStats& s) const {
    const int64_t state_bytes = states_.bytes_each();
    s.kv_pages_cached = int32_t(device_pages_.size());
    s.checkpoints = int32_t(device_states_.size());
    s.checkpoint_bytes = s.checkpoints * state_bytes;
    s.checkpoint_budget = limits_.states * state_bytes;
    s.host_entries = int32_t(host_.size());
    s.host_bytes = host_bytes_;
    s.host_budget = limits_.host_bytes;
    s.evictions = evictions_;
}

}  // namespace sparkinfer
