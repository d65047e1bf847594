// attention_splitkv.cuh — decode attention over the paged KV: a row's keys split over clusters of blocks.
// Computes   ops.h: Attention, in one launch
// Shapes     q [T≤8, H, d∈{64,128,256}], H/G ≤ 8   pages [n, 2, G, 64, d] BF16|F32|FP8   y [T, H, d]
// Mapping    grid (8·C, G, T) in clusters of 8. The row's own length says how many of its C clusters work;
//            the others leave at once. A block serves all H/G heads of its kv head; its warps take turns at
//            the tiles of its share (attention_splitkv_tiles.cuh), softmax online. Merged ascending: warps,
//            then the blocks of a cluster (block j gets head j of all eight through distributed shared
//            memory), then, from two clusters on, clusters, by the last one to arrive.
//            Keys of this step are made again from k and v by every block that needs them, so no block reads
//            what another writes; the row's own block alone stores them in the page.
// Memory     reads K and V once per row: 2·len·G·d·bytes. Floor = bytes / bandwidth.
// Early      before the wait: Step, rope, norms, Slots (`embed` is two or more launches back and does not
//            trigger early), pages of earlier steps. Trigger: top.
// Limits     len ≤ 2^20; threads, registers and shared KB (5 ring pieces; 4 on sm_120): BF16 d = 256: 128,
// 168,
//            109 (92); 128: 256, 128, 100 (83); 64: 256, 128, 53 (44); F32: 256, 168, ≤ 100. sm_90+
//            (clusters).
//            FP8: queries times their scale below 65,504.
// Numbers    docs/perf/h200.md
// Tested     tests/ops/attention.cpp against float64: 5e-6 (F32), 1e-4 (BF16, FP8: keys that round to the
// other neighbour); a
//            row's bits for T = 1 … 8.
#pragma once
#include "cuda/attention_splitkv_tiles.cuh"
#include "cuda/launch.h"
#include "cuda/lib/cluster.cuh"
#include "cuda/lib/math.cuh"
#include "cuda/lib/pdl.cuh"

namespace sparkinfer::cuda {

struct SplitCall {
    Attention op;
    float* part;        // [T, G, 8 heads, C] of kPartFloats
    int32_t* arrivals;  // [T, G, 8] zero before and after
    int32_t clusters;   // C
};

// Query head i of the group, scaled for base 2, to where the products read it.
template <class S>
__device__ __forceinline__ void place_query(float* queries, const float* head, float scale, int i, int lane) {
    if constexpr (S::kMma) {
#pragma unroll
        for (int pair = lane; pair < S::kWidth / 2; pair += 32) {
            uint2 words;
            const float x0 = head[2 * pair] * scale, x1 = head[2 * pair + 1] * scale;
            if constexpr (S::kFp8)
                split_f16(x0, x1, words.x, words.y);
            else
                split_bf16(x0, x1, words.x, words.y);
            const int step = pair / 8, c = S::kFp8 ? pair / 2 % 4 : pair % 4,
                      half = S::kFp8 ? pair % 2 : pair / 4 % 2;
            reinterpret_cast<uint2*>(queries)[(step * 32 + i * 4 + c) * 2 + half] = words;
        }
    } else {
        for (int j = lane; j < S::kWidth; j += 32) queries[i * S::kWidth + j] = head[j] * scale;
    }
}

// After the wait: queries, and the fresh keys and values that this block needs; the row's own go to the page
// too.
template <class S>
__device__ __forceinline__ void split_prepare(const Attention& o, const SplitRow& s,
                                              const SplitShared<S>& shared, int r, int g,
                                              const Turn<S::kWidth>& turn, int warp, int lane) {
    using Values = float[S::kWidth / 32];
    constexpr int kHeads = kSplitHeads / S::kWarps;
    const int group = o.heads / o.kv.heads, step = S::kWidth * (o.gated ? 2 : 1);
    const bool q_normed = o.q_norm.data != nullptr, k_normed = o.k_norm.data != nullptr;
    const float log2_e = 1.4426950408889634f;
    float* head = shared.inbox + warp * S::kWidth;
    Values q_gain = {}, k_gain = {}, x[kHeads] = {}, k, v;
    int turn_of = S::kWarps - 1 - warp, u = s.template fresh_row<S>(turn_of);
    const auto load_key = [&] {
        load_head<S::kWidth>(k, o.k.row(u) + g * S::kWidth, lane);
        load_head<S::kWidth>(v, o.v.row(u) + g * S::kWidth, lane);
    };
    if (q_normed) load_head<S::kWidth>(q_gain, static_cast<const float*>(o.q_norm.data), lane);
    if (k_normed && u >= 0) load_head<S::kWidth>(k_gain, static_cast<const float*>(o.k_norm.data), lane);
    wait_for_predecessor();
#pragma unroll
    for (int j = 0; j < kHeads; ++j)
        if (const int i = warp + j * S::kWarps; i < group)
            load_head<S::kWidth>(x[j], o.q.row(r) + int64_t(g * group + i) * step, lane);
    if (u >= 0) load_key();
#pragma unroll
    for (int j = 0; j < kHeads; ++j) {  // heads beyond the group become zeros
        prepare_head<S::kWidth>(x[j], q_normed, q_gain, o.eps, o.rope, turn, head, lane);
        place_query<S>(shared.queries, head, o.scale * log2_e, warp + j * S::kWarps, lane);
        __syncwarp();
    }
    while (u >= 0) {
        const int index = __shfl_sync(kWholeWarp, s.mine.index, u);
        int32_t position[3];
#pragma unroll
        for (int a = 0; a < 3; ++a) position[a] = __shfl_sync(kWholeWarp, s.mine.position[a], u);
        prepare_head<S::kWidth>(k, k_normed, k_gain, o.eps, o.rope,
                                u == r ? turn : turn_at<S::kWidth>(o.rope, position, lane), head, lane);
        typename S::Stored* fresh = shared.fresh + (index - s.old_end) * S::kWidth;
        const int32_t* pages = o.slots.pages(s.row.slot);
        typename S::Stored *k_page = kv_at<typename S::Stored>(o.kv, pages, index, 0, g),
                           *v_page = kv_at<typename S::Stored>(o.kv, pages, index, 1, g);
#pragma unroll
        for (int j = 0; j < S::kWidth / 32; ++j) {
            const int i = j * 32 + lane;
            const auto key = typename S::Stored(head[i]), value = typename S::Stored(v[j]);
            fresh[i] = key, fresh[kSplitRows * S::kWidth + i] = value;
            if (u == r) k_page[i] = key, v_page[i] = value;
        }
        __syncwarp();
        u = s.template fresh_row<S>(turn_of += S::kWarps);
        if (u >= 0) load_key();
    }
}

// Merges the warps' results and sends head h to block h of the cluster.
template <class S>
__device__ __forceinline__ void split_send(const SplitShared<S>& shared, int rank, int group) {
#pragma unroll 2
    for (int i = threadIdx.x; i < group * (S::kWidth / 4); i += S::kThreads) {
        const int h = i / (S::kWidth / 4), column = i % (S::kWidth / 4) * 4;
        float top = -INFINITY, sum = 0;
        float4 y = {0, 0, 0, 0};
#pragma unroll
        for (int w = 0; w < S::kWarps; ++w) top = fmaxf(top, shared.softmax[w * kSplitHeads + h].x);
#pragma unroll
        for (int w = 0; w < S::kWarps; ++w) {
            const float2 one = shared.softmax[w * kSplitHeads + h];
            if (one.x == -INFINITY) continue;  // it had no tile and stored no values
            const float e = exp2f(one.x - top);
            const float* out = reinterpret_cast<const float*>(shared.warps + w * S::warp_bytes(kSplitPieces));
            const float4 v = *reinterpret_cast<const float4*>(out + h * S::kOutRow + column);
            sum += e * one.y;
            y.x += e * v.x, y.y += e * v.y, y.z += e * v.z, y.w += e * v.w;
        }
        peer_store(peer_address(shared_address(shared.inbox + rank * S::kWidth + column), h), y);
        if (column == 0)
            peer_store(peer_address(shared_address(shared.inbox_softmax + rank), h), float2{top, sum});
    }
}

// Σ over `count` parts, ascending, of one thread's columns; softmax(i) and value(i) read part i.
struct Merged {
    float top = -INFINITY, sum = 0;
    float2 y = {0, 0};
    template <class Softmax, class Value>
    __device__ __forceinline__ Merged(int count, Softmax softmax, Value value) {
        for (int i = 0; i < count; ++i) top = fmaxf(top, softmax(i).x);
        for (int i = 0; i < count; ++i) {
            const float2 one = softmax(i);
            if (one.x == -INFINITY) continue;
            const float e = exp2f(one.x - top);
            const float2 v = pair(value(i));
            sum += e * one.y;
            y.x += e * v.x, y.y += e * v.y;
        }
    }
    static __device__ __forceinline__ float2 pair(float2 v) { return v; }
    static __device__ __forceinline__ float2 pair(float v) { return {v, 0}; }
};

// y of one column: divided by the sum, and gated.
__device__ __forceinline__ float finished(float y, float sum, bool gated, float gate) {
    return gated ? y / sum * fast_sigmoid(gate) : y / sum;
}

// The head this block was sent: over the cluster, then, in the last of the row's clusters to arrive, over
// clusters; this is cluster `cluster`, and `place` the row's among all there are. A thread has S::kColumns
// neighbouring columns.
template <class S>
__device__ __forceinline__ void split_finish(const SplitCall& p, const SplitShared<S>& shared, int clusters,
                                             int cluster, int place, int r, int g, int rank, float2 gate) {
    using Run = typename S::Run;
    const int unit = (place * p.op.kv.heads + g) * kSplitHeads + rank, column = threadIdx.x * S::kColumns;
    float* y = p.op.y.row(r) + int64_t(g * (p.op.heads / p.op.kv.heads) + rank) * S::kWidth + column;
    float* part = p.part + int64_t(unit) * p.clusters * S::kPartFloats;
    const auto finish = [&](const Merged& m) {
        y[0] = finished(m.y.x, m.sum, p.op.gated, gate.x);
        if (S::kColumns == 2) y[1] = finished(m.y.y, m.sum, p.op.gated, gate.y);
    };
    if (column < S::kWidth) {
        const Merged m(
            kSplitCluster, [&](int i) { return shared.inbox_softmax[i]; },
            [&](int i) { return *reinterpret_cast<const Run*>(shared.inbox + i * S::kWidth + column); });
        if (clusters == 1) {
            finish(m);
        } else {
            float* to = part + cluster * S::kPartFloats;
            to[4 + column] = m.y.x;
            if (S::kColumns == 2) to[4 + column + 1] = m.y.y;
            if (column == 0) to[0] = m.top, to[1] = m.sum;
        }
    }
    if (clusters == 1) return;
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        *shared.last = atomicAdd(p.arrivals + unit, 1) == clusters - 1;
        if (*shared.last) p.arrivals[unit] = 0;
    }
    __syncthreads();
    if (!*shared.last || column >= S::kWidth) return;
    __threadfence();
    finish(Merged(
        clusters, [&](int i) { return __ldcg(reinterpret_cast<const float2*>(part + i * S::kPartFloats)); },
        [&](int i) { return __ldcg(reinterpret_cast<const Run*>(part + i * S::kPartFloats + 4 + column)); }));
}

// One block's share of a row: cluster `cluster` of those the row has.
template <class S>
__device__ __forceinline__ void split_attend(const SplitCall& p, const SplitShared<S>& shared,
                                             const SplitRow& s, int cluster, int place, int r, int g,
                                             int rank, int warp, int lane) {
    const Attention& o = p.op;
    const int group = o.heads / o.kv.heads;
    [[maybe_unused]] SplitRing<S> ring{};
    if constexpr (S::kMma) {
        const int64_t head_bytes = int64_t(kPageTokens) * S::kRowBytes;
        ring = {shared_address(shared.warp),
                o.slots.pages(s.row.slot),
                o.kv.pages + g * head_bytes,
                o.kv.page_bytes,
                int(o.kv.heads * head_bytes),
                s.begin + warp,
                s.end,
                s.old_end,
                lane};
#pragma unroll 1
        for (int i = 0; i < kSplitPieces; ++i) ring.ask();
    }
    const Turn<S::kWidth> turn = turn_at<S::kWidth>(o.rope, s.row.position, lane);
    split_prepare<S>(o, s, shared, r, g, turn, warp, lane);
    float2 gate = {0, 0};
    if (const int column = threadIdx.x * S::kColumns; o.gated && rank < group && column < S::kWidth)
        gate = Merged::pair(*reinterpret_cast<const typename S::Run*>(
            o.q.row(r) + (int64_t(g * group + rank) * 2 + 1) * S::kWidth + column));
    __syncthreads();
    cluster_arrive();  // the inbox is free
    float* out = reinterpret_cast<float*>(shared.warp);
    float2* softmax = shared.softmax + warp * kSplitHeads;
    if (s.begin + warp >= s.end) {
        if (lane < kSplitHeads) softmax[lane] = {-INFINITY, 0};
    } else if constexpr (S::kMma) {
        SplitMma<S> tiles;
        tiles.run(ring, s, shared);
        tiles.store(out, softmax, lane);
    } else {
        SplitFma<S> tiles;
        tiles.run(o, s, shared, g, warp, lane);
        tiles.store(out, softmax, lane);
    }
    __syncthreads();
    cluster_wait();
    split_send<S>(shared, rank, group);
    cluster_arrive();
    cluster_wait();
    if (rank < group) split_finish<S>(p, shared, s.clusters, cluster, place, r, g, rank, gate);
}

// Kernel     attention_splitkv: 168 registers
template <class S>
__global__ void __cluster_dims__(kSplitCluster, 1, 1) __launch_bounds__(S::kThreads, S::kMinBlocks)
    attention_splitkv(const SplitCall p) {
    extern __shared__ __align__(128) std::byte split_memory[];
    let_successor_start();
    const Attention& o = p.op;
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, g = blockIdx.y, r = blockIdx.z;
    const int rank = blockIdx.x % kSplitCluster, group = o.heads / o.kv.heads;
    const SplitRow s = SplitRow::find<S>(o, r, lane, p.clusters);
    if (!s.row.present) {
        if (blockIdx.x >= group) return;
        wait_for_predecessor();
        float* y = o.y.row(r) + int64_t(g * group + blockIdx.x) * S::kWidth;
        for (int i = threadIdx.x; i < S::kWidth; i += S::kThreads) y[i] = 0;
        return;
    }
    // Clusters without keys leave without waiting: they touch nothing, and a row's first cluster always
    // waits.
    if (blockIdx.x >= s.clusters * kSplitCluster) return;
    split_attend<S>(p, SplitShared<S>(split_memory, warp), s, blockIdx.x / kSplitCluster, r, r, g, rank, warp,
                    lane);
}

}  // namespace sparkinfer::cuda
