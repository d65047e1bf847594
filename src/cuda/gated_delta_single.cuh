// gated_delta_single.cuh — the gated delta rule for segments of one row: many sequences, a token each.
// Computes   ops.h: GatedDelta, for segments that delta_is_single() takes; the others are delta_step_many's
// Shapes     as gated_delta_step.cuh
// Mapping    a block per (value head, segment) with all of the head's S in registers: thread (warp w < 8, lane)
//            holds what the same thread of each of gated_delta_step.cuh's four blocks does, "quarter" by
//            quarter, and sums in the same order: the same bits. Blocks of a multiprocessor hide each other's
//            waiting.
// Memory     S once in and once out, 128 KB a head and segment, whole rows of it; floor as
//            gated_delta_step.cuh.
// Order      as gated_delta_step.cuh; a block reads its header before the first barrier and writes it after.
// Limits     heads of 128, 4 taps. 256 threads, two blocks a multiprocessor. Trigger: top.
// Numbers    docs/perf/h200.md
// Tested     as gated_delta_step.cuh
#pragma once
#include "cuda/gated_delta_step.cuh"

namespace sparkinfer::cuda {

constexpr int kSingleThreads = kDeltaWarps * 32;

// One row, folded at once, and no state to save beside it.
__device__ __forceinline__ bool delta_is_single(const GatedDelta& o, const Segment& g) {
    return g.rows == 1 && g.saves == 0 && !(o.step.rows()[g.first_row].flags & kRowVerify);
}

struct SingleShared {
    float4 tap[2][kSingleThreads];                           // each thread's own
    alignas(16) float query[kDeltaWidth], key[kDeltaWidth];  // not yet normalised
    alignas(16) float value[kDeltaWidth], gate[kDeltaWidth];
    alignas(16) float read_key[kDeltaBlocks][kDeltaWarps][kDeltaColumns];
    float read_query[kDeltaBlocks][kDeltaWarps][kDeltaColumns];
    float squares[kDeltaBlocks];
    float beta, keep;
};

// One thread of a block, at one segment. Cell: of S in memory, float or uint16_t for BF16.
template <class Cell>
struct SingleThread {
    const DeltaCall& p;
    const GatedDelta& o;
    SingleShared& s;
    Segment g;
    int head, warp, lane;
    bool owns_first;        // writes its channel of q or k to the ring
    int channel[2];         // of q or k; warps 0 … 3: of v
    float last[2][3];
    int start;
    float cell[kDeltaBlocks][4][4];  // quarter, row, column

    __device__ __forceinline__ SingleThread(const DeltaCall& call, SingleShared& shared)
        : p(call), o(call.op), s(shared) {
        head = blockIdx.x, warp = threadIdx.x / 32, lane = threadIdx.x % 32;
        const int n_k = o.state.key_heads, n_v = o.state.value_heads, share = n_v / n_k;
        const bool block = o.order == HeadOrder::block;
        const int key_head = block ? head / share : head % n_k, of_head = int(threadIdx.x) % kDeltaWidth;
        owns_first = block ? head % share == 0 : head < n_k;
        channel[0] = (warp / 4 * n_k + key_head) * kDeltaWidth + of_head;
        channel[1] = (2 * n_k + head) * kDeltaWidth + of_head;
        const auto* taps = static_cast<const float4*>(o.conv.data);
        s.tap[0][threadIdx.x] = __ldg(taps + channel[0]);
        if (warp < 4) s.tap[1][threadIdx.x] = __ldg(taps + channel[1]);
    }
    __device__ __forceinline__ int row_of_s() const { return warp * 16 + lane / 8 * 4; }
    // Row i of a quarter lies i·128 further, the next quarter 32.
    __device__ __forceinline__ Cell* cells(int slot) const {
        return reinterpret_cast<Cell*>(DeltaState(p, slot).s) +
               (int64_t(head) * kDeltaWidth + row_of_s()) * kDeltaWidth + lane % 8 * 4;
    }
    __device__ __forceinline__ void load_cells() {
        const Cell* from = cells(max(g.state_in, 0));
        const bool old = g.state_in >= 0;
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int q = 0; q < kDeltaBlocks; ++q) {
                const Cell* at = from + i * kDeltaWidth + q * kDeltaColumns;
                float* c = cell[q][i];
                if constexpr (sizeof(Cell) == 2) {
                    uint2 v = make_uint2(0, 0);
                    if (old) v = __ldcg(reinterpret_cast<const uint2*>(at));
                    c[0] = __uint_as_float(v.x << 16), c[1] = __uint_as_float(v.x & 0xffff0000u);
                    c[2] = __uint_as_float(v.y << 16), c[3] = __uint_as_float(v.y & 0xffff0000u);
                } else {
                    float4 v = make_float4(0, 0, 0, 0);
                    if (old) v = __ldcg(reinterpret_cast<const float4*>(at));
                    c[0] = v.x, c[1] = v.y, c[2] = v.z, c[3] = v.w;
                }
            }
    }
    __device__ __forceinline__ void store_cells(int q) const {
        Cell* to = cells(g.state_out) + q * kDeltaColumns;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const float* c = cell[q][i];
            if constexpr (sizeof(Cell) == 2)
                *reinterpret_cast<uint2*>(to + i * kDeltaWidth) =
                    make_uint2(f32_to_bf16(c[0]) | uint32_t(f32_to_bf16(c[1])) << 16,
                               f32_to_bf16(c[2]) | uint32_t(f32_to_bf16(c[3])) << 16);
            else
                *reinterpret_cast<float4*>(to + i * kDeltaWidth) = make_float4(c[0], c[1], c[2], c[3]);
        }
    }
    __device__ __forceinline__ void load_columns(int accepted) {
        start = 0;
#pragma unroll
        for (int c = 0; c < 2; ++c) last[c][0] = last[c][1] = last[c][2] = 0;
        if (g.state_in < 0) return;
        const DeltaState in(p, g.state_in);
        start = __ldcg(&in.header[head].position) + accepted;
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            const float* column = in.ring + int64_t(delta_column(start, i - 3)) * o.state.channels;
            last[0][i] = __ldcg(column + channel[0]);
            if (warp < 4) last[1][i] = __ldcg(column + channel[1]);
        }
    }
    __device__ __forceinline__ void update(int q, float keep, const float (&key)[4], const float (&d)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) cell[q][i][j] = delta_cell(cell[q][i][j], keep, key[i], d[j]);
    }
    __device__ __forceinline__ void fold(int accepted) {
        const DeltaState in(p, g.state_in);
#pragma unroll 1
        for (int i = 0; i < accepted; ++i) {
            const int64_t entry = int64_t(i) * o.state.value_heads + head;
            const float4 k =
                __ldcg(reinterpret_cast<const float4*>(in.log_k + entry * kDeltaWidth + row_of_s()));
            const float keep = expf(__ldcg(in.log_g + entry));
#pragma unroll
            for (int q = 0; q < kDeltaBlocks; ++q) {
                const float4 d = __ldcg(reinterpret_cast<const float4*>(
                    in.log_d + entry * kDeltaWidth + q * kDeltaColumns + lane % 8 * 4));
                update(q, keep, {k.x, k.y, k.z, k.w}, {d.x, d.y, d.z, d.w});
            }
        }
    }
    // Channels through convolution and silu, and the head's gates.
    __device__ __forceinline__ float convolved(int c, float x) {
        const float4 tap = s.tap[c][threadIdx.x];
        float m = __fmul_rn(last[c][0], tap.x);
        m = __fmaf_rn(last[c][1], tap.y, m);
        m = __fmaf_rn(last[c][2], tap.z, m);
        return fast_silu(__fmaf_rn(x, tap.w, m));
    }
    __device__ __forceinline__ void convolve(float x, float v) {
        const int of_head = int(threadIdx.x) % kDeltaWidth;
        (warp < 4 ? s.query : s.key)[of_head] = convolved(0, x);
        if (warp < 4) {
            s.value[of_head] = convolved(1, v);
            return;
        }
        const float z = __ldcg(o.z.row(g.first_row) + head * kDeltaWidth + of_head),
                    gain = __ldg(static_cast<const float*>(o.norm.data) + of_head);
        s.gate[of_head] = fast_silu(z) * gain;
        if (threadIdx.x != 128) return;
        const float rate = __ldg(static_cast<const float*>(o.decay.data) + head),
                    bias = __ldg(static_cast<const float*>(o.dt_bias.data) + head);
        s.keep = expf(__fmul_rn(rate, softplus(__ldcg(o.alpha.row(g.first_row) + head) + bias)));
        s.beta = fast_sigmoid(__ldcg(o.beta.row(g.first_row) + head));
    }
    __device__ __forceinline__ void read_cells() {
        const float4 k = *reinterpret_cast<const float4*>(s.key + row_of_s());
        const float4 y = *reinterpret_cast<const float4*>(s.query + row_of_s());
        const float key[4] = {k.x, k.y, k.z, k.w}, query[4] = {y.x, y.y, y.z, y.w};
#pragma unroll
        for (int q = 0; q < kDeltaBlocks; ++q)
            delta_read(cell[q], key, query, lane, s.read_key[q][warp], s.read_query[q][warp]);
    }
    // d of column `lane` of a quarter.
    __device__ __forceinline__ float change(int q, float key_scale) const {
        float part[kDeltaWarps];
#pragma unroll
        for (int w = 0; w < kDeltaWarps; ++w) part[w] = s.read_key[q][w][lane];
        return delta_change(s.beta, s.value[q * kDeltaColumns + lane], __fmul_rn(s.keep, key_scale),
                            delta_sum(part));
    }
    __device__ __forceinline__ void change_cells(const DeltaNorms& n) {
        const float4 k = *reinterpret_cast<const float4*>(s.key + row_of_s());
        const float key[4] = {__fmul_rn(k.x, n.key_scale), __fmul_rn(k.y, n.key_scale),
                              __fmul_rn(k.z, n.key_scale), __fmul_rn(k.w, n.key_scale)};
#pragma unroll
        for (int q = 0; q < kDeltaBlocks; ++q) {
            const float mine = change(q, n.key_scale);
            float d[4];
#pragma unroll
            for (int j = 0; j < 4; ++j) d[j] = __shfl_sync(kWholeWarp, mine, lane % 8 * 4 + j);
            update(q, s.keep, key, d);
            if (g.state_out >= 0) store_cells(q);
        }
    }
    // Column `lane` of quarter `warp` before its norm, and the quarter's Σo².
    __device__ __forceinline__ float out(const DeltaNorms& n) {
        float by_query[kDeltaWarps];
#pragma unroll
        for (int w = 0; w < kDeltaWarps; ++w) by_query[w] = s.read_query[warp][w][lane];
        const float d = change(warp, n.key_scale);
        const float y = __fmaf_rn(__fmul_rn(s.keep, n.query_scale), delta_sum(by_query),
                                  __fmul_rn(d, n.key_query));
        const float squares = warp_sum(__fmul_rn(y, y));
        if (lane == 0) s.squares[warp] = squares;
        return y;
    }
    __device__ __forceinline__ void write_ring(int c, float x) const {
        const DeltaState to(p, g.state_out);
        const float three[3] = {last[c][1], last[c][2], x};
#pragma unroll
        for (int i = 0; i < 3; ++i)
            if (i == 2 || g.state_out != g.state_in)
                to.ring[int64_t(delta_column(start, i - 2)) * o.state.channels + channel[c]] = three[i];
    }
    // The row; its inputs have been read.
    __device__ __forceinline__ void run(float x, float v) {
        convolve(x, v);
        __syncthreads();
        const DeltaNorms n(s.key, s.query, lane);
        read_cells();
        __syncthreads();
        const float y = warp < kDeltaBlocks ? out(n) : 0;
        change_cells(n);
        if (g.state_out >= 0) {
            if (owns_first) write_ring(0, x);
            if (warp < 4) write_ring(1, v);
            if (threadIdx.x == 0) DeltaState(p, g.state_out).header[head] = {delta_column(start, 1), 0, {0, 0}};
        }
        __syncthreads();
        if (warp >= kDeltaBlocks) return;
        const float sum = (s.squares[0] + s.squares[1]) + (s.squares[2] + s.squares[3]);
        const int column = warp * kDeltaColumns + lane;
        o.y.row(g.first_row)[head * kDeltaWidth + column] =
            y * rsqrtf(sum / kDeltaWidth + o.eps) * s.gate[column];
    }
};

// Kernel     delta_single: 128 registers, 18560 bytes
template <class Cell>
__global__ void __launch_bounds__(kSingleThreads, 2) delta_single(const __grid_constant__ DeltaCall p) {
    __shared__ SingleShared s;
    let_successor_start();
    const GatedDelta& o = p.op;
    const int segments = o.step.header().segments;
    SingleThread<Cell> me(p, s);
#pragma unroll 1
    for (int index = blockIdx.y; index < segments; index += gridDim.y) {
        me.g = o.step.segments()[index];
        if (!delta_is_single(o, me.g)) continue;
        const int early = delta_accepted_early(me.g), row = me.g.first_row;
        me.load_cells();
        me.load_columns(max(early, 0));
        wait_for_predecessor();
        const float x = __ldcg(o.qkv.row(row) + me.channel[0]),
                    v = me.warp < 4 ? __ldcg(o.qkv.row(row) + me.channel[1]) : 0;
        const DeltaCursor c = delta_cursor(o, me.g, delta_has_cursor(o, me.g));
        if (c.stopped) {
            if (me.warp < 4) o.y.row(row)[me.head * kDeltaWidth + int(threadIdx.x)] = 0;
            continue;
        }
        if (c.accepted > 0) me.load_columns(c.accepted);
        if (const int accepted = max(early, c.accepted); accepted > 0) me.fold(accepted);
        me.run(x, v);
        __syncthreads();  // before the next segment's values
    }
    wait_for_predecessor();
}

}  // namespace sparkinfer::cuda
