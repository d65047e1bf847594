// output_chunks.cuh — what a warp can tell of 256 logits of a row: the first of the two launches that choose
// a token. Computes   ops.h: Output, kinds select and logprobs: adjusted logits, greatest logit and Σexp of
// each chunk Shapes     logits [R ≤ 64, V] F32   chunks [R, ≤ 1024] Chunk   adjusted [R, V rounded up to 4]
// F32 Mapping    a block per (slice of the vocabulary, row), 8 logits a thread in registers, one chunk a
// warp.
//            Penalties count the history into shared memory, each block for its own slice.
// Memory     V floats once, from L2, and the history once a block where penalties ask for it; rows that draw
//            from adjusted logits write those. Floor at one row: 4·V bytes of L2.
// Order      sums in float in a fixed tree.
// Limits     V < 2^31. 256 threads, ≤ 64 registers, 12 KB. sm_80+. Trigger: top.
// Numbers    docs/perf/h200.md
// Tested     tests/ops/output.cpp, output_select.cpp against float64 and cpu/.
#pragma once
#include "cuda/output_select.cuh"

namespace sparkinfer::cuda {

constexpr int kChunkThreads = 256, kChunkWarps = kChunkThreads / 32;
constexpr int kChunkTile = kChunkThreads * 8;  // logits of a block at a time
constexpr int kMaxChunks = kSelectThreads;     // of a row
constexpr int kMaxSlices = kMaxChunks / kChunkWarps;
constexpr int kMaxOutputs = 64;                // rows of logits at a time
constexpr int kListed = 64;                    // best tokens that choose puts in order
constexpr int kGathered = 2048;                // tokens that may be looked at to find them
constexpr uint32_t kLeastFinite = 0x00800000;  // ordered(-FLT_MAX)

// What a warp knows of its logits. Keys are ordered(); 0: none.
struct Chunk {
    uint32_t raw;   // greatest raw logit
    float sum;      // Σ exp(raw - greatest raw)
    uint32_t best;  // greatest logit above -inf after penalties, bias and mask …
    int32_t id;     // … and the lowest token that has it
    float mass;     // Σ exp(logit - best) after those, of rows that sample without top-k
    float reserved[3];
};
static_assert(sizeof(Chunk) == 32);

struct StageCall {
    Output op;
    int32_t first;  // output that row 0 of the logits stands for
    int32_t vocabulary;
    int32_t tiles, slices;  // of a slice; of a row
    float* adjusted;  // [R, V rounded up to 4] logits after penalties, bias and mask, of rows that sample
    Chunk* chunks;    // [R, slices · kChunkWarps]
    HD int64_t adjusted_stride() const { return (int64_t(vocabulary) + 3) / 4 * 4; }
    HD int chunk_count() const { return slices * kChunkWarps; }
};

__device__ inline bool sampling_penalises(const Sampling& s) {
    return (s.repeat_penalty != 1.0f && s.repeat_last_n != 0) || s.presence_penalty != 0.0f ||
           s.frequency_penalty != 0.0f;
}
__device__ inline bool sampling_adjusts(const Sampling& s) {
    return sampling_penalises(s) || s.biases > 0 || s.mask >= 0;
}
__device__ inline bool sampling_draws(const Sampling& s) { return s.temperature > 0 && s.top_k != 1; }

// Four logits from token e on, NaN behind the last.
__device__ __forceinline__ float4 load_logits(const float* x, int e, int n) {
    if (e + 3 < n && reinterpret_cast<uintptr_t>(x + e) % 16 == 0)
        return __ldcg(reinterpret_cast<const float4*>(x + e));
    float v[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) v[i] = e + i < n ? __ldcg(x + e + i) : NAN;
    return make_float4(v[0], v[1], v[2], v[3]);
}
__device__ __forceinline__ uint32_t raw_key(float v) { return v == v ? ordered(v) : 0; }
__device__ __forceinline__ uint32_t live_key(float v) { return v > -INFINITY ? ordered(v) : 0; }

// The first token of run j (of 2) of four that a lane holds of a tile.
__device__ __forceinline__ int lane_token(int tile, int j, int warp, int lane) {
    return tile * kChunkTile + j * (kChunkTile / 2) + warp * 128 + lane * 4;
}

struct ChunkShared {
    uint32_t
        word[kChunkTile];  // how often a token was generated, top bit: it is repeated; then logits as bits
    Bias bias[kMaxBias];
};

// One row as stage one needs it.
struct ChunkRow {
    const Slot* slot;
    const int32_t* history;
    int length;
    bool adjusts, draws;
    double weaker;  // 1 / repeat penalty: its float64 products round to what a division gives
};

// Counts of the tile's tokens in the row's history, into s.word.
__device__ inline void count_history(const ChunkRow& row, int base, ChunkShared& s) {
    const Sampling& sampling = row.slot->sampling;
    int repeated = row.length, generated = row.length;  // first index that counts
    if (sampling.repeat_penalty != 1.0f && sampling.repeat_last_n != 0)
        repeated = sampling.repeat_last_n < 0 ? 0 : max(0, row.length - sampling.repeat_last_n);
    if (sampling.presence_penalty != 0.0f || sampling.frequency_penalty != 0.0f)
        generated = min(row.length, max(row.slot->cursor.prompt, 0));
    __syncthreads();
    for (int i = threadIdx.x; i < kChunkTile; i += kChunkThreads) s.word[i] = 0;
    __syncthreads();
#pragma unroll 4
    for (int i = min(repeated, generated) + int(threadIdx.x); i < row.length; i += kChunkThreads) {
        const uint32_t t = uint32_t(__ldcg(row.history + i)) - uint32_t(base);
        if (t >= uint32_t(kChunkTile)) continue;
        if (i >= repeated) atomicOr(&s.word[t], 0x80000000u);
        if (i >= generated) atomicAdd(&s.word[t], 1u);
    }
    __syncthreads();
}

// Adds the slot's biases to the tile, those of one token in their order.
__device__ inline void add_biases(const ChunkRow& row, int base, float (&x)[8], ChunkShared& s) {
    const int count = min(row.slot->sampling.biases, kMaxBias), warp = threadIdx.x / 32,
              lane = threadIdx.x % 32;
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kChunkThreads) s.bias[i] = row.slot->bias[i];
#pragma unroll
    for (int i = 0; i < 8; ++i) s.word[lane_token(0, i / 4, warp, lane) + i % 4] = __float_as_uint(x[i]);
    __syncthreads();
    for (int i = threadIdx.x; i < count; i += kChunkThreads) {
        const int token = s.bias[i].token;
        if (token < base || token - base >= kChunkTile) continue;
        bool first = true;
        for (int j = 0; j < i; ++j) first &= s.bias[j].token != token;
        if (!first) continue;
        float v = __uint_as_float(s.word[token - base]);
        for (int j = i; j < count; ++j)
            if (s.bias[j].token == token) v += s.bias[j].value;
        s.word[token - base] = __float_as_uint(v);
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = __uint_as_float(s.word[lane_token(0, i / 4, warp, lane) + i % 4]);
}

// Raw logits -> adjusted: NaN is -inf; then penalties, bias, mask.
__device__ inline void adjust(const StageCall& p, const ChunkRow& row, int tile, float (&x)[8],
                              ChunkShared& s) {
    const Sampling& sampling = row.slot->sampling;
    const int base = tile * kChunkTile, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 8; ++i) x[i] = x[i] == x[i] ? x[i] : -INFINITY;
    if (sampling_penalises(sampling)) {
        count_history(row, base, s);
#pragma unroll
        for (int i = 0; i < 8; ++i) {
            const uint32_t word = s.word[lane_token(0, i / 4, warp, lane) + i % 4],
                           count = word & 0x7fffffffu;
            if (word >> 31)
                x[i] = x[i] > 0 ? float(double(x[i]) * row.weaker) : x[i] * sampling.repeat_penalty;
            const float times = __fmul_rn(float(count), sampling.frequency_penalty);
            if (count) x[i] = __fsub_rn(x[i], __fadd_rn(sampling.presence_penalty, times));
        }
    }
    if (sampling.biases > 0) add_biases(row, base, x, s);
    const uint32_t* mask =
        sampling.mask < 0 ? nullptr : p.op.slots.masks + int64_t(sampling.mask) * p.op.slots.mask_words;
#pragma unroll
    for (int j = 0; j < 2; ++j) {
        const int token = lane_token(tile, j, warp, lane);
        const uint32_t bits =
            !mask || token >= p.vocabulary ? 0xffffffffu : __ldcg(mask + token / 32) >> (token % 32);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float& v = x[4 * j + i];
            if (v != v || !(bits >> i & 1) || token + i >= p.vocabulary) v = -INFINITY;
        }
    }
}

// Greatest and Σ exp(x - greatest) of a warp's logits, tile after tile.
struct RunningSum {
    uint32_t most = 0;  // ordered
    float sum = 0;
    // keys of x: 0 for what does not count
    __device__ __forceinline__ void add(const float (&x)[8], const uint32_t (&key)[8]) {
        uint32_t top = key[0];
#pragma unroll
        for (int i = 1; i < 8; ++i) top = max(top, key[i]);
        top = __reduce_max_sync(kWholeWarp, top);
        if (top == 0) return;
        const float greatest = unordered(max(top, most));
        float part = 0;
        if (!isinf(greatest)) {
#pragma unroll
            for (int i = 0; i < 8; ++i) part += key[i] ? expf(x[i] - greatest) : 0.0f;
            part = warp_sum(part);
            if (most) part += sum * expf(unordered(most) - greatest);
        }
        most = max(top, most);
        sum = part;
    }
};

// Kernel     output_chunks: 64 registers, 12288 bytes
template <bool kSelect>
__global__ void __launch_bounds__(kChunkThreads, 4) output_chunks(const __grid_constant__ StageCall p) {
    __shared__ ChunkShared s;
    let_successor_start();
    const Output& o = p.op;
    const int i = blockIdx.y, n = p.vocabulary, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const int r = p.first + i < o.step.header().outputs ? o.step.outputs()[p.first + i] : -1;
    wait_for_predecessor();
    if (r < 0) return;
    const LiveRow live = live_row(o.step, o.slots, r);
    if (!live.present) return;
    ChunkRow row{};
    if (kSelect) {
        row.slot = &o.slots.slot(live.slot);
        row.history = o.slots.history(live.slot);
        row.length = live.index + 1;
        row.adjusts = sampling_adjusts(row.slot->sampling);
        row.draws = sampling_draws(row.slot->sampling);
        if (row.adjusts) row.weaker = 1.0 / double(row.slot->sampling.repeat_penalty);
    }
    RunningSum raw, mass;
    uint32_t best = 0;
    int32_t id = -1;
    for (int tile = blockIdx.x * p.tiles; tile < (int(blockIdx.x) + 1) * p.tiles; ++tile) {
        float x[8];
        uint32_t key[8];
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const float4 v = load_logits(o.scratch.row(i), lane_token(tile, j, warp, lane), n);
            x[4 * j] = v.x, x[4 * j + 1] = v.y, x[4 * j + 2] = v.z, x[4 * j + 3] = v.w;
        }
#pragma unroll
        for (int k = 0; k < 8; ++k) key[k] = raw_key(x[k]);
        raw.add(x, key);
        if (!kSelect) continue;
        if (row.adjusts) adjust(p, row, tile, x, s);
        uint32_t top = 0;
#pragma unroll
        for (int k = 0; k < 8; ++k) top = max(top, key[k] = live_key(x[k]));
        top = __reduce_max_sync(kWholeWarp, top);
        uint32_t lowest = 0xffffffffu;
#pragma unroll
        for (int k = 7; k >= 0; --k)
            if (key[k] == top) lowest = uint32_t(lane_token(tile, k / 4, warp, lane) + k % 4);
        lowest = __reduce_min_sync(kWholeWarp, lowest);
        if (top > best) best = top, id = int32_t(lowest);
        if (!row.draws || !row.adjusts) continue;
        mass.add(x, key);
        float* to = p.adjusted + i * p.adjusted_stride();
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            const int token = lane_token(tile, j, warp, lane);
            if (token < n)
                *reinterpret_cast<float4*>(to + token) =
                    make_float4(x[4 * j], x[4 * j + 1], x[4 * j + 2], x[4 * j + 3]);
        }
    }
    if (lane) return;
    Chunk& chunk = p.chunks[int64_t(i) * p.chunk_count() + blockIdx.x * kChunkWarps + warp];
    *reinterpret_cast<uint4*>(&chunk) = make_uint4(raw.most, __float_as_uint(raw.sum), best, uint32_t(id));
    if (kSelect) chunk.mass = row.adjusts ? mass.sum : raw.sum;
}

}  // namespace sparkinfer::cuda
