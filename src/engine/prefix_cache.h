// prefix_cache.h — beginnings of sequences that later ones start from.
//
// A tree a salt. A node is one KV page: the 64 tokens that follow its parent's (or fewer, where a sequence
// ended), compared token by token. It holds a reference to the page, and maybe one to the recurrent state
// behind its last token. A sequence can start behind any token of a node, or, with recurrent layers, only
// where there is a state. What was used longest ago gives way: to host memory while that has room, then for
// good. Nobody is more recently used than its parent, so that leaves go first. Nothing waits for what is on
// its way to the host but who wants to read it there; what does not arrive counts as not kept.
#pragma once
#include <deque>
#include <functional>
#include <list>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <unordered_set>
#include <vector>

#include "engine/block_mover.h"
#include "engine/engine.h"
#include "engine/kv_cache.h"
#include "engine/sequence.h"
#include "engine/state_pool.h"

namespace sparkinfer {

struct CacheLimits {
    int32_t states = 0;             // most recurrent states on the device
    int64_t host_bytes = 0;         // most bytes in host memory
    int32_t granule = kPageTokens;  // sequences start at multiples of it only; a page: anywhere
};

class PrefixCache {
  public:
    // `mover` outlives it.
    PrefixCache(KvCache& kv, StatePool& states, const CacheLimits& limits, BlockMover& mover);
    ~PrefixCache();
    PrefixCache(const PrefixCache&) = delete;
    PrefixCache& operator=(const PrefixCache&) = delete;

    struct Node;

    // The longest point that a sequence of these tokens can start from, with at least one of them left.
    struct Match {
        std::vector<Node*> path;   // whose pages cover it
        int32_t length = 0;        // tokens; 0: there is none
        int32_t shared_pages = 0;  // whole ones that are on the device
        bool loads_tail = false;   // a partial page must be brought back before it is copied
        bool from_host = false;
        Admission admission;  // what to tell of it
    };
    // Waits for what is on its way to the host, if it is needed. Valid until something is kept or gives way
    // otherwise than by make_room(…, &match).
    Match find(const std::string& salt, std::span<const TokenId> tokens);
    // Whether so many pages are free, after others than those of `keep` have given way if need be. Nothing
    // gives way in vain.
    bool make_room(int32_t pages, const Match* keep = nullptr);
    // The same for states of live sequences.
    bool make_state_room(int32_t states, const Match* keep = nullptr);
    // References to what a match stands for; host copies are brought back. REQUIRES: room for them.
    Snapshot restore(const Match& match);

    // Keeps a point. `pages` cover the tokens; `state` -1: none (models without recurrent layers). `pending`:
    // the step that is being planned writes it.
    void insert(const std::string& salt, std::span<const TokenId> tokens, const PageList& pages,
                int32_t state, int32_t logged, bool pending);
    // A free state for a point about to be kept, one reference; none: the budget is used by this very step.
    std::optional<int32_t> take_state(int32_t promised);

    // What was inserted and restored since the last call is queued on the device: it may give way now.
    void launched();
    // Forgets everything.
    void clear();
    // The first failure of a copy to the device: everything is to be given up.
    const std::optional<Error>& trouble() const { return trouble_; }

    void add_stats(EngineStats& stats) const;
    // For check_integrity(): all that it holds.
    void collect(std::vector<PageList>& pages, std::vector<int32_t>& states) const;
    void check_integrity() const;

    // Every page, parents before their children.
    void visit(const std::function<void(const std::string& salt, const Node& node)>& visitor) const;

  private:
    friend class CacheFile;
    struct Less;
    // Where a page or a state is: on the device, in host memory, or (states) nowhere.
    struct Place {
        Node* node = nullptr;
        bool is_state = false;
        int32_t device = -1;
        HostBlock host;
        Ticket copied;                      // of the newest copy to or from `host`
        bool arriving = false;              // it is on its way to `host`
        int64_t written = 0;                // on the device, by the step planned then at the latest
        std::list<Place*>* list = nullptr;  // by use, oldest first
        std::list<Place*>::iterator at{};
        bool none() const { return device < 0 && !host; }
    };

    Match look_up(const std::string& salt, std::span<const TokenId> tokens);
    Node* child(Node& parent, std::span<const TokenId> tokens);
    Node& make_child(Node& parent, std::span<const TokenId> tokens);
    void find_point(Match& match, Node& deepest, std::span<const TokenId> tokens, int32_t common);
    Node* tail_with_state(const Node& node, std::span<const TokenId> rest) const;
    std::pair<Node*, int32_t> nearest_child(const Node& node, std::span<const TokenId> rest) const;
    void explain(Match& match, const Node& deepest, std::span<const TokenId> tokens, int32_t common,
                 bool ended) const;
    void touch(Node& node);

    std::span<std::byte> device_bytes(const Place& place) const;
    int64_t bytes_of(const Place& place) const;
    void enlist(Place& place, std::list<Place*>& list);
    void set_device(Place& place, int32_t id);
    void forget(Place& place);
    bool over(Ticket copied) const;
    void release_host(Place& place);
    void release_arrived();
    Ticket written_by(const Place& place) const;
    Ticket bring_back(std::span<const BlockMove> moves);
    bool arrived(Place& place);
    Place* find_lost(const Match& match);
    void settle();
    bool may_move(const Place& place) const;
    bool frees(const Place& place) const;
    std::vector<Place*> oldest(const std::list<Place*>& list, int32_t n) const;
    bool make_host_room(int64_t bytes);
    bool set_host(Place& place, std::span<const std::byte> bytes);
    void place_host(Place& place, HostBlock block, Ticket arrival);
    int32_t to_host(std::span<Place* const> places);
    void evict(std::list<Place*>& list, int32_t n);
    bool state_in_budget();
    void give_up(Place& place);
    void discard(Node& node);
    void drop(Node& node);
    bool useless(const Node& node) const;
    void prune(Node* node);
    void drop_empty_roots();
    void forget_all(Node& node);
    void remember(const Node& node);
    bool was_evicted(const Node& parent, std::span<const TokenId> tokens) const;

    KvCache& kv_;
    StatePool& states_;
    const CacheLimits limits_;
    BlockMover& mover_;
    std::map<std::string, std::unique_ptr<Node>> roots_;
    std::list<Place*> device_pages_, device_states_, host_;  // oldest first
    int64_t host_bytes_ = 0;
    int64_t now_ = 1;
    std::deque<std::pair<int64_t, Ticket>> steps_;  // the newest that were queued, by when they were planned
    struct Held {
        Ticket ticket;
        HostBlock block;
    };
    std::deque<Held> held_;  // given up, but still read or written
    std::optional<Error> trouble_;
    // Hashes of what gave way for good, for telling why something was not found.
    std::unordered_set<uint64_t> gone_;
    std::deque<uint64_t> gone_order_;
    int64_t evictions_ = 0;
};

struct PrefixCache::Less {
    using is_transparent = void;
    bool operator()(std::span<const TokenId> a, std::span<const TokenId> b) const {
        return std::lexicographical_compare(a.begin(), a.end(), b.begin(), b.end());
    }
};

struct PrefixCache::Node {
    std::vector<TokenId> tokens;  // at most 64; a root has none
    Node* parent = nullptr;       // of a root: null
    int32_t end = 0;              // tokens from the beginning to its last
    uint64_t path = 0;            // hash of them all
    std::map<std::vector<TokenId>, std::unique_ptr<Node>, Less> children;
    int32_t tails = 0;  // children with fewer than 64 tokens
    Place page, state;
    int32_t logged = 0;       // of the state
    bool state_gone = false;  // there was one
    int64_t used = 0;         // by the step planned then: must stay until it is queued
    int32_t pins = 0;
};

}  // namespace sparkinfer
