// attention_prompt_source.cuh — the half of attention_prompt.cuh that brings keys and values: four warps copy
// parts of images, K and V by turns, into a ring in shared memory; where a page has none, they copy from the
// page and turn that into operands there, to the same bits and at about half the speed.
#pragma once
#include "cuda/attention_prompt_images.cuh"
#include "cuda/lib/copy.cuh"

namespace sparkinfer::cuda {

// kWarps attend, in pairs where a head is 256 wide: the two have the same 32 rows, half the keys of a part
// when it is multiplied with the queries, and half the columns of the values.
template <int kHeadWidth, class StoredType, int kAttendingWarps, int kPartKeys, int kRingParts>
struct PromptShape {
    using Stored = StoredType;
    static constexpr int kWidth = kHeadWidth, kKeys = kPartKeys, kStages = kRingParts;
    static constexpr bool kExact = std::is_same_v<Stored, float>,
                          kFactors = std::is_same_v<Stored, __nv_bfloat16>;
    static constexpr int kPair = kWidth == 256 ? 2 : 1, kWarps = kAttendingWarps;
    static constexpr int kRows = kWarps / kPair * 32, kPlanes = kExact ? 2 : 1;
    static constexpr int kThreads = (kWarps + 4) * 32;
    static constexpr int kAttendRegisters = kWidth == 128 ? 240 : 232,  // of 384 threads
        kFeedRegisters = 504 - 2 * kAttendRegisters;
    static constexpr int kMost = kExact ? 2048 / kWidth : kWidth == 64 ? 64 : 32;
    static constexpr int kStep = kKeys / kPair < kMost ? kKeys / kPair : kMost;  // keys at a time
    static constexpr int kSteps = kKeys / kPair / kStep;
    static constexpr int kColumns = kWidth / kPair;  // of the values, a warp
    static constexpr int kRowBytes = kWidth * 2, kPlaneBytes = kKeys * kRowBytes;
    static constexpr int kPartBytes = kPlanes * kPlaneBytes;
    static constexpr int kQueryPlane = kRows * kRowBytes;
    static constexpr int kShareRow = kKeys * 2 + 16;  // bytes: 16 apart, so that ldmatrix meets no conflict
    static constexpr int kShareBytes = kPair == 2 ? 32 * kShareRow : 0;  // a pair's probabilities

    static constexpr int kPartsAt = kPlanes * kQueryPlane;
    static constexpr int kSharesAt = kPartsAt + kStages * kPartBytes;
    static constexpr int kFactorsAt = kSharesAt + kWarps / kPair * kShareBytes;
    static constexpr int kScaledAt = kFactorsAt + (kFactors ? kStages * kKeys * 8 : 0);
    static constexpr int kRowsAt = kScaledAt + (kFactors ? kStages * 16 : 0);
    static constexpr int kBarriersAt = kRowsAt + (kPair == 2 ? kWarps * 32 * 4 : 0);
    static constexpr int kSharedBytes = kBarriersAt + kStages * 16;
    static_assert(kSteps * kStep * kPair == kKeys && (kPair == 1 || kSteps == 1));
};

// Place and parity of the ring's next part.
template <class S>
struct PromptRing {
    int stage = 0;
    uint32_t phase = 0;
    __device__ __forceinline__ void advance() {
        if (++stage == S::kStages) stage = 0, phase ^= 1;
    }
};

template <class S>
struct PromptShared {
    std::byte* base;
    __device__ uint32_t queries() const { return shared_address(base); }
    __device__ uint32_t part(int stage) const {
        return shared_address(base) + S::kPartsAt + stage * S::kPartBytes;
    }
    __device__ uint32_t share(int pair) const {
        return shared_address(base) + S::kSharesAt + pair * S::kShareBytes;
    }
    // Per token of a part. K: {factor, -}; V: {exponent, 2^-exponent}
    __device__ float2* factors(int stage) const {
        return reinterpret_cast<float2*>(base + S::kFactorsAt) + stage * S::kKeys;
    }
    // [4] whether some factor of a part is not 1, by the warps that made it
    __device__ int* scaled(int stage) const {
        return reinterpret_cast<int*>(base + S::kScaledAt) + stage * 4;
    }
    __device__ float* rows(int warp) const {  // [32]
        return reinterpret_cast<float*>(base + S::kRowsAt) + warp * 32;
    }
    __device__ uint64_t* full(int stage) const {
        return reinterpret_cast<uint64_t*>(base + S::kBarriersAt) + stage;
    }
    __device__ uint64_t* empty(int stage) const { return full(stage) + S::kStages; }
};

// What a block has to do, in order: a tile of rows and a query head. Heaviest first; every other round runs
// backwards through the blocks.
struct PromptItems {
    int total, heads, round = -1;
    PromptTile tile{};
    int head = 0;
    __device__ __forceinline__ explicit PromptItems(const PromptCall& p)
        : total(p.plan.counts[0] * p.op.heads), heads(p.op.heads) {}
    __device__ __forceinline__ bool next(const PromptCall& p) {
        const int blocks = gridDim.x, b = blockIdx.x;
        int item;
        do {
            if (int64_t(++round) * blocks >= total) return false;
            item = round * blocks + (round & 1 ? blocks - 1 - b : b);
        } while (item >= total);
        tile = p.plan.sorted[item / heads];
        head = item % heads;
        return true;
    }
    template <class S>
    __device__ __forceinline__ int parts() const {
        return (tile.index + tile.rows + S::kKeys - 1) / S::kKeys;
    }
};

// The parts of all items in order, K and V by turns. from: null behind the last; limit: tokens that are keys;
// image: `from` is an image, and the part begins at its token `first`.
struct PromptPart {
    const std::byte* from;
    int limit, first;
    bool image;
};
template <class S>
struct PromptParts {
    PromptItems items;
    const int32_t* pages = nullptr;
    const std::byte* keys = nullptr;  // of the part, of the kv head
    int part = 0, parts = 0;
    bool values = true, image = false;
    using Image = PromptImage<S::kWidth, typename S::Stored>;
    __device__ __forceinline__ explicit PromptParts(const PromptCall& p) : items(p) {}
    __device__ __forceinline__ PromptPart next(const PromptCall& p) {
        const KvLayer& kv = p.op.kv;
        constexpr int kTokenBytes = S::kWidth * int(sizeof(typename S::Stored));
        values = !values;
        if (!values) {
            if (++part >= parts) {
                if (!items.next(p)) return {nullptr, 0, 0, false};
                part = 0;
                parts = items.template parts<S>();
                pages = p.op.slots.pages(items.tile.slot);
            }
            const int first = part * S::kKeys, page = first / kPageTokens;
            const int g = items.head / (p.op.heads / kv.heads);
            image = page < items.tile.images;
            if (image)
                keys = p.images + (int64_t(items.tile.image + page) * kv.heads + g) * 2 * Image::kBytes;
            else
                keys = kv.pages + pages[page] * kv.page_bytes +
                       (int64_t(g) * kPageTokens + first % kPageTokens) * kTokenBytes;
        }
        const int64_t to_values = image ? Image::kBytes : int64_t(kv.heads) * kPageTokens * kTokenBytes;
        return {keys + (values ? to_values : 0), items.tile.index + items.tile.rows - part * S::kKeys,
                part * S::kKeys % kPageTokens, image};
    }
};

__device__ __forceinline__ void async_copy8(uint32_t to, const void* from, bool wanted) {
    asm volatile("cp.async.ca.shared.global [%0],[%1],8,%2;" ::"r"(to), "l"(from), "r"(wanted ? 8 : 0)
                 : "memory");
}
__device__ __forceinline__ uint4 load_shared16(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.b32 {%0,%1,%2,%3},[%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}
// Whether a phase is over, without waiting. One answer for the warp.
__device__ __forceinline__ bool barrier_over(uint64_t* b, uint32_t parity) {
    uint32_t ok;
    asm volatile("{ .reg .pred p; mbarrier.test_wait.parity.shared::cta.b64 p,[%1],%2; selp.u32 %0,1,0,p; }"
                 : "=r"(ok)
                 : "r"(shared_address(b)), "r"(parity)
                 : "memory");
    return __all_sync(kWholeWarp, ok != 0);
}

// One of the four warps that fill the ring. A lane has eight neighbouring columns of a token: it copies them
// as they are to where their operands will be, as far ahead as the ring has room, and turns them into
// operands in place.
template <class S>
struct PromptProducer {
    static constexpr int kLanes = S::kWidth / 8, kTokens = 32 / kLanes;  // of a token; at a time
    static constexpr int kChunks = S::kKeys / 4 / kTokens;               // a part
    static constexpr int kLaneBytes = 8 * int(sizeof(typename S::Stored)), kGroup = kLaneBytes == 8 ? 1 : 2;
    static_assert(kChunks % kGroup == 0);
    int warp, lane;

    __device__ __forceinline__ int token(int chunk) const {
        return (chunk * 4 + warp) * kTokens + lane / kLanes;
    }
    __device__ __forceinline__ uint32_t place(uint32_t part, int t) const {
        return part + t * S::kRowBytes + (((lane % kLanes) ^ (t & 7)) << 4);
    }
    __device__ __forceinline__ void ask(const PromptPart& part, uint32_t base) const {
        const std::byte* from = part.from + (token(0) * kLanes + lane % kLanes) * kLaneBytes;
#pragma unroll
        for (int i = 0; i < kChunks; ++i) {
            const int t = token(i);
            const uint32_t to = place(base, t);
            const std::byte* x = from + i * 4 * kTokens * kLanes * kLaneBytes;
            if constexpr (kLaneBytes == 8) {
                async_copy8(to, x, t < part.limit);
            } else {
                async_copy16(to, x, t < part.limit);
                if (S::kExact) async_copy16(to + S::kPlaneBytes, x + 16, t < part.limit);
            }
        }
        async_commit();
    }
    // A part of an image, by one lane of every warp: the first one's.
    __device__ __forceinline__ void fetch(const PromptPart& part, int stage,
                                          const PromptShared<S>& shared) const {
        using Image = PromptImage<S::kWidth, typename S::Stored>;
        uint64_t* full = shared.full(stage);
        if (warp > 0) return barrier_arrive(full);
        asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
        barrier_expect(full, S::kPartBytes + (S::kFactors ? S::kKeys * 8 + 16 : 0));
        std::byte* to = shared.base + S::kPartsAt + stage * S::kPartBytes;
        for (int i = 0; i < S::kPlanes; ++i)
            bulk_copy_kept(to + i * S::kPlaneBytes,
                           part.from + i * Image::kPlaneBytes + part.first * S::kRowBytes, S::kPlaneBytes,
                           full);
        if (!S::kFactors) return;
        bulk_copy_kept(shared.factors(stage), part.from + Image::kFactorsAt + part.first * 8, S::kKeys * 8,
                       full);
        bulk_copy_kept(shared.scaled(stage), part.from + Image::kScaledAt, 16, full);
    }
    __device__ __forceinline__ void turn(uint32_t part, int stage, bool values,
                                         const PromptShared<S>& shared) const {
        [[maybe_unused]] int odd = 0;
#pragma unroll 1
        for (int first = 0; first < kChunks; first += kGroup) {
            uint4 raw[kGroup];
#pragma unroll
            for (int j = 0; j < kGroup; ++j) raw[j] = load_shared16(place(part, token(first + j)));
            if constexpr (S::kFactors) {
                int e[kGroup];
                narrow<kLanes>(raw, e);
#pragma unroll
                for (int j = 0; j < kGroup; ++j) {
                    const int t = token(first + j);
                    store_shared16(place(part, t), raw[j]);
                    odd |= e[j];
                    if (lane % kLanes == 0) shared.factors(stage)[t] = token_factor(e[j], values);
                }
            } else {
#pragma unroll
                for (int j = 0; j < kGroup; ++j) {
                    const uint32_t at = place(part, token(first + j));
                    if constexpr (S::kExact) {
                        uint4 high, low;
                        split_eight(raw[j], load_shared16(at + S::kPlaneBytes), high, low);
                        store_shared16(at, high);
                        store_shared16(at + S::kPlaneBytes, low);
                    } else {
                        store_shared16(at, widen_eight(make_uint2(raw[j].x, raw[j].y)));
                    }
                }
            }
        }
        if constexpr (S::kFactors) {
            const bool any = __any_sync(kWholeWarp, odd);
            if (lane == 0) shared.scaled(stage)[warp] = any;
        }
    }
    // The oldest of `pending` parts has arrived.
    static __device__ __forceinline__ void wait_oldest(int pending) {
        if (pending >= 4)
            async_wait<3>();
        else if (pending == 3)
            async_wait<2>();
        else if (pending == 2)
            async_wait<1>();
        else
            async_wait<0>();
    }
    __device__ __forceinline__ void run(const PromptCall& p, const PromptShared<S>& shared) const {
        static_assert(S::kStages <= 4);
        PromptParts<S> parts(p);
        PromptRing<S> ask_ring, turn_ring;
        PromptPart next = parts.next(p);
        int pending = 0;
        bool values = false;
        while (true) {
            while (next.from && !next.image && pending < S::kStages) {
                uint64_t* empty = shared.empty(ask_ring.stage);
                if (pending == 0)
                    barrier_wait(empty, ask_ring.phase ^ 1);
                else if (!barrier_over(empty, ask_ring.phase ^ 1))
                    break;
                ask(next, shared.part(ask_ring.stage));
                ask_ring.advance();
                ++pending;
                next = parts.next(p);
            }
            if (pending > 0) {
                wait_oldest(pending);
                turn(shared.part(turn_ring.stage), turn_ring.stage, values, shared);
                __syncwarp();
                if (lane == 0) barrier_arrive(shared.full(turn_ring.stage));
                --pending;
            } else if (next.from) {
                barrier_wait(shared.empty(ask_ring.stage), ask_ring.phase ^ 1);
                if (lane == 0) fetch(next, ask_ring.stage, shared);
                ask_ring.advance();
                next = parts.next(p);
            } else {
                break;
            }
            turn_ring.advance();
            values = !values;
        }
    }
};

}  // namespace sparkinfer::cuda
