#include "ops/backend.h"

#include <set>

namespace sparkinfer {

// One group after the other, for backends that have no use for more than one at a time.
Result<std::vector<std::vector<Weight>>> Backend::place_all(std::span<const WeightGroup> groups,
                                                            ByteSource& source,
                                                            const PlaceProgress& progress) {
    std::set<const void*> counted;
    const auto fresh_bytes = [&](const WeightGroup& group) {
        int64_t bytes = 0;
        for (const Weight& w : group.weights)
            if (w.data && counted.insert(w.data).second) bytes += weight_bytes(w);
        return bytes;
    };
    int64_t total = 0, done = 0;
    for (const WeightGroup& group : groups) total += fresh_bytes(group);
    counted.clear();
    std::vector<std::vector<Weight>> placed;
    for (const WeightGroup& group : groups) {
        TRY(std::vector<Weight> weights, place(group, source));
        placed.push_back(std::move(weights));
        done += fresh_bytes(group);
        if (progress) progress(done, total);
    }
    return placed;
}

Result<void> Backend::read(std::span<std::byte> to, std::span<const std::byte> from, Ticket after) {
    TRY(const Ticket copied, copy(to, from, after));
    TRY([[maybe_unused]] const bool there, done(copied, true));
    return {};
}

Result<MemoryNeed> Backend::plan(std::span<const WeightGroup>, std::span<const Tape>) { return MemoryNeed{}; }

}  // namespace sparkinfer
