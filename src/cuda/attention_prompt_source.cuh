// attention_prompt_source.cuh — the half of attention_prompt.cuh that brings keys and values: four warps copy
// parts of a page, K and V by turns, into a ring in shared memory and turn them into operands there.
// BF16: FP16 with a power of two per token, so that any magnitude fits and a token's operands do not depend
// on its neighbours. FP8: FP16, exact. F32: two planes of BF16 whose sum has 16 bits.
#pragma once
#include "cuda/attention_prompt_plan.cuh"
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
    static constexpr bool kTurns = kWarps == 8;  // two attending warps a scheduler: one multiplies at a time
    static constexpr int kAttendRegisters = 232, kFeedRegisters = 40;  // of 384 threads
    static constexpr int kStep = kKeys / kPair < 32 || kWidth == 64 ? kKeys / kPair : 32;  // keys at a time
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
        const int4 t = *reinterpret_cast<const int4*>(p.plan.sorted + item / heads);
        tile = {t.x, t.y, t.z, t.w};
        head = item % heads;
        return true;
    }
    template <class S>
    __device__ __forceinline__ int parts() const {
        return (tile.index + tile.rows + S::kKeys - 1) / S::kKeys;
    }
};

// The parts of all items in order, K and V by turns. from: null behind the last; limit: tokens that are keys.
struct PromptPart {
    const std::byte* from;
    int limit;
    bool values;
};
template <class S>
struct PromptParts {
    PromptItems items;
    const int32_t* pages = nullptr;
    const std::byte* keys = nullptr;  // of the part, of the kv head
    int part = 0, parts = 0;
    bool values = true;
    __device__ __forceinline__ explicit PromptParts(const PromptCall& p) : items(p) {}
    __device__ __forceinline__ PromptPart next(const PromptCall& p) {
        const KvLayer& kv = p.op.kv;
        constexpr int kTokenBytes = S::kWidth * int(sizeof(typename S::Stored));
        values = !values;
        if (!values) {
            if (++part >= parts) {
                if (!items.next(p)) return {nullptr, 0, false};
                part = 0;
                parts = items.template parts<S>();
                pages = p.op.slots.pages(items.tile.slot);
            }
            const int first = part * S::kKeys, g = items.head / (p.op.heads / kv.heads);
            keys = kv.pages + pages[first / kPageTokens] * kv.page_bytes +
                   (int64_t(g) * kPageTokens + first % kPageTokens) * kTokenBytes;
        }
        return {keys + (values ? int64_t(kv.heads) * kPageTokens * kTokenBytes : 0),
                items.tile.index + items.tile.rows - part * S::kKeys, values};
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
    static constexpr int kLaneBytes = 8 * int(sizeof(typename S::Stored)), kGroup = S::kExact ? 2 : 4;
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
    // BF16 to FP16 in place, times 2^-e; e of the whole token. All of a group side by side: one chunk alone is
    // a long chain.
    __device__ __forceinline__ void narrow(uint4 (&raw)[kGroup], int (&e)[kGroup]) const {
        constexpr uint32_t kMagnitude = 0x7fff7fffu;
        uint32_t most[kGroup];
#pragma unroll
        for (int j = 0; j < kGroup; ++j) {
            most[j] = __vmaxu2(__vmaxu2(raw[j].x & kMagnitude, raw[j].y & kMagnitude),
                               __vmaxu2(raw[j].z & kMagnitude, raw[j].w & kMagnitude));
            most[j] = max(most[j] & 0xffffu, most[j] >> 16);
        }
        if constexpr (kLanes == 32) {
#pragma unroll
            for (int j = 0; j < kGroup; ++j) most[j] = __reduce_max_sync(kWholeWarp, most[j]);
        } else {  // two at a time
#pragma unroll
            for (int d = kLanes / 2; d; d /= 2)
#pragma unroll
                for (int j = 0; j < kGroup; j += 2) {
                    const uint32_t two = d == kLanes / 2 ? most[j] | most[j + 1] << 16 : most[j];
                    most[j] = __vmaxu2(two, __shfl_xor_sync(kWholeWarp, two, d));
                }
#pragma unroll
            for (int j = 0; j < kGroup; j += 2) most[j + 1] = most[j] >> 16, most[j] &= 0xffffu;
        }
#pragma unroll
        for (int j = 0; j < kGroup; ++j) {
            e[j] = operand_exponent(__uint_as_float(most[j] << 16));
            const uint32_t scale = uint32_t(127 - e[j]) * 0x00800080u;
            const auto one = [&](uint32_t& x) {
                const __nv_bfloat162 scaled = __hmul2(reinterpret_cast<const __nv_bfloat162&>(x),
                                                      reinterpret_cast<const __nv_bfloat162&>(scale));
                const uint32_t w = reinterpret_cast<const uint32_t&>(scaled);
                const __half2 h =
                    __floats2half2_rn(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
                x = reinterpret_cast<const uint32_t&>(h);
            };
            one(raw[j].x), one(raw[j].y), one(raw[j].z), one(raw[j].w);
        }
    }
    static __device__ __forceinline__ void split(uint4 a, uint4 b, uint4& high, uint4& low) {
        split_bf16(__uint_as_float(a.x), __uint_as_float(a.y), high.x, low.x);
        split_bf16(__uint_as_float(a.z), __uint_as_float(a.w), high.y, low.y);
        split_bf16(__uint_as_float(b.x), __uint_as_float(b.y), high.z, low.z);
        split_bf16(__uint_as_float(b.z), __uint_as_float(b.w), high.w, low.w);
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
                narrow(raw, e);
#pragma unroll
                for (int j = 0; j < kGroup; ++j) {
                    const int t = token(first + j);
                    store_shared16(place(part, t), raw[j]);
                    odd |= e[j];
                    if (lane % kLanes == 0)
                        shared.factors(stage)[t] = values ? float2{float(e[j]), power_of_two(-e[j])}
                                                          : float2{power_of_two(e[j]), 0};
                }
            } else {
#pragma unroll
                for (int j = 0; j < kGroup; ++j) {
                    const uint32_t at = place(part, token(first + j));
                    if constexpr (S::kExact) {
                        uint4 high, low;
                        split(raw[j], load_shared16(at + S::kPlaneBytes), high, low);
                        store_shared16(at, high);
                        store_shared16(at + S::kPlaneBytes, low);
                    } else {
                        const uint2 a = e4m3_to_f16(raw[j].x), b = e4m3_to_f16(raw[j].y);
                        store_shared16(at, make_uint4(a.x, a.y, b.x, b.y));
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
            while (next.from && pending < S::kStages) {
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
            if (pending == 0) break;
            wait_oldest(pending);
            turn(shared.part(turn_ring.stage), turn_ring.stage, values, shared);
            __syncwarp();
            if (lane == 0) barrier_arrive(shared.full(turn_ring.stage));
            turn_ring.advance();
            values = !values;
            --pending;
        }
    }
};

}  // namespace sparkinfer::cuda
