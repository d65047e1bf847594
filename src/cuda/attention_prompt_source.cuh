// attention_prompt_source.cuh — the half of attention_prompt.cuh that brings keys and values: four warps load
// parts of a page into registers, turn them into operands and store those, K and V by turns, in a ring in
// shared memory.
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
    static constexpr int kRowsAt = kFactorsAt + (kFactors ? kStages * kKeys * 8 : 0);
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

// One of the four warps that fill the ring. A lane has eight neighbouring columns of a token.
template <class S>
struct PromptProducer {
    static constexpr int kLanes = S::kWidth / 8, kTokens = 32 / kLanes;  // of a token; at a time
    static constexpr int kChunks = S::kKeys / 4 / kTokens;               // a part
    static constexpr int kMost = S::kExact ? 4 : 8, kAhead = kChunks < kMost ? kChunks : kMost;
    static constexpr int kLaneBytes = 8 * int(sizeof(typename S::Stored)), kWords = kLaneBytes / 4;
    static_assert(kChunks % kAhead == 0);
    uint32_t raw[kAhead][kWords];
    int warp, lane;

    __device__ __forceinline__ int token(int chunk) const {
        return (chunk * 4 + warp) * kTokens + lane / kLanes;
    }
    __device__ __forceinline__ void load(int chunk, const PromptPart& part) {
        uint32_t(&to)[kWords] = raw[chunk % kAhead];
#pragma unroll
        for (int i = 0; i < kWords; ++i) to[i] = 0;
        const int t = token(chunk);
        if (t >= part.limit || !part.from) return;
        const std::byte* from = part.from + (t * kLanes + lane % kLanes) * kLaneBytes;
        if constexpr (kWords == 2) {
            const uint2 v = __ldcg(reinterpret_cast<const uint2*>(from));
            to[0] = v.x, to[1] = v.y;
        } else {
#pragma unroll
            for (int i = 0; i < kWords / 4; ++i) {
                const uint4 v = __ldcg(reinterpret_cast<const uint4*>(from) + i);
                to[4 * i] = v.x, to[4 * i + 1] = v.y, to[4 * i + 2] = v.z, to[4 * i + 3] = v.w;
            }
        }
    }
    // BF16 to FP16 times 2^-e; e of the whole token.
    __device__ __forceinline__ int narrow(const uint32_t* x, uint32_t (&half)[4]) const {
        constexpr uint32_t kMagnitude = 0x7fff7fffu;
        uint32_t most = __vmaxu2(__vmaxu2(x[0] & kMagnitude, x[1] & kMagnitude),
                                 __vmaxu2(x[2] & kMagnitude, x[3] & kMagnitude));
        most = max(most & 0xffffu, most >> 16);
        if constexpr (kLanes == 32) {
            most = __reduce_max_sync(kWholeWarp, most);
        } else {
#pragma unroll
            for (int d = kLanes / 2; d; d /= 2) most = max(most, __shfl_xor_sync(kWholeWarp, most, d));
        }
        const int e = operand_exponent(__uint_as_float(most << 16));
        const uint32_t scale = uint32_t(127 - e) * 0x00800080u;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const __nv_bfloat162 scaled = __hmul2(reinterpret_cast<const __nv_bfloat162&>(x[i]),
                                                  reinterpret_cast<const __nv_bfloat162&>(scale));
            const uint32_t w = reinterpret_cast<const uint32_t&>(scaled);
            const __half2 h = __floats2half2_rn(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
            half[i] = reinterpret_cast<const uint32_t&>(h);
        }
        return e;
    }
    __device__ __forceinline__ void store(int chunk, uint32_t part, float2* factors, bool values) const {
        const uint32_t* x = raw[chunk % kAhead];
        const int t = token(chunk);
        const uint32_t to = part + t * S::kRowBytes + (((lane % kLanes) ^ (t & 7)) << 4);
        uint32_t w[4];
        if constexpr (S::kFactors) {
            const int e = narrow(x, w);
            if (lane % kLanes == 0)
                factors[t] = values ? float2{float(e), power_of_two(-e)} : float2{power_of_two(e), 0};
        } else if constexpr (S::kExact) {
            uint32_t low[4];
#pragma unroll
            for (int i = 0; i < 4; ++i)
                split_bf16(__uint_as_float(x[2 * i]), __uint_as_float(x[2 * i + 1]), w[i], low[i]);
            store_shared16(to + S::kPlaneBytes, make_uint4(low[0], low[1], low[2], low[3]));
        } else {
#pragma unroll
            for (int i = 0; i < 2; ++i) {
                const uint2 h = e4m3_to_f16(x[i]);
                w[2 * i] = h.x, w[2 * i + 1] = h.y;
            }
        }
        store_shared16(to, make_uint4(w[0], w[1], w[2], w[3]));
    }
    __device__ __forceinline__ void run(const PromptCall& p, const PromptShared<S>& shared) {
        PromptParts<S> parts(p);
        PromptRing<S> ring;
        PromptPart now = parts.next(p);
#pragma unroll
        for (int i = 0; i < kAhead; ++i) load(i, now);
        while (now.from) {
            const PromptPart then = parts.next(p);
            barrier_wait(shared.empty(ring.stage), ring.phase ^ 1);
            const uint32_t part = shared.part(ring.stage);
#pragma unroll
            for (int i = 0; i < kChunks; ++i) {
                store(i, part, shared.factors(ring.stage), now.values);
                if (i + kAhead < kChunks)
                    load(i + kAhead, now);
                else
                    load(i + kAhead - kChunks, then);
            }
            __syncwarp();
            if (lane == 0) barrier_arrive(shared.full(ring.stage));
            ring.advance();
            now = then;
        }
    }
};

}  // namespace sparkinfer::cuda
