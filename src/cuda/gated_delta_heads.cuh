// gated_delta_heads.cuh — gated_delta_step.cuh for many segments: a block has a whole head.
// Computes   ops.h: GatedDelta
// Shapes     as gated_delta_step.cuh
// Mapping    a block per (value head, segment) with all of the head's S in registers: a thread (warp < 8,
//            lane) holds what the same thread of each of gated_delta_step.cuh's four blocks does, "quarter"
//            by quarter, and sums in the same order: the same bits. Nothing is exchanged between blocks, and
//            those of a multiprocessor hide each other's waiting.
// Memory     S once in and once out per segment, 128 KB a head, whole rows of it; qkv and z once.
// Order      as gated_delta_step.cuh; a block reads its header and logs before the first barrier and writes
//            them after.
// Limits     heads of 128, 4 taps. 256 threads, two blocks a multiprocessor. Trigger: top.
// Numbers    docs/perf/h200.md
// Tested     as gated_delta_step.cuh
#pragma once
#include "cuda/gated_delta_step.cuh"

namespace sparkinfer::cuda {

constexpr int kHeadThreads = kDeltaWarps * 32;

struct HeadShared {
    float4 tap[2][kHeadThreads];  // each thread's own, and its channels' inputs of the 3 rows before
    float last[2][3][kHeadThreads];
    alignas(16) float query[kDeltaWidth], key[kDeltaWidth];  // not yet normalised
    alignas(16) float value[kDeltaWidth], gate[kDeltaWidth];
    alignas(16) float read_key[kDeltaBlocks][kDeltaWarps][kDeltaColumns];
    float read_query[kDeltaBlocks][kDeltaWarps][kDeltaColumns];
    float squares[kDeltaBlocks];
    float beta, keep, log_g;
};

// What one row brings to one thread.
struct HeadInput {
    float x, v;         // its channel of q or k before the convolution; warps 0 … 3: of v
    float z;            // the others: of the gate
    float beta, alpha;  // the first of them
};

// One thread of a block, at one segment. Cell: of S in memory, float or uint16_t for BF16.
template <class Cell>
struct HeadThread {
    const DeltaCall& p;
    const GatedDelta& o;
    HeadShared& s;
    Segment g;
    int head, warp, lane;
    bool owns_first;  // writes its channel of q or k to the ring
    int channel[2];   // of q or k; warps 0 … 3: of v
    int start;        // ring position of the segment's first row
    int folded;
    float cell[kDeltaBlocks][4][4];  // quarter, row, column

    __device__ __forceinline__ HeadThread(const DeltaCall& call, HeadShared& shared)
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
    __device__ __forceinline__ void store_cells(int slot, int q) const {
        Cell* to = cells(slot) + q * kDeltaColumns;
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
        for (int i = 0; i < 3; ++i) s.last[0][i][threadIdx.x] = s.last[1][i][threadIdx.x] = 0;
        if (g.state_in < 0) return;
        const DeltaState in(p, g.state_in);
        start = __ldcg(&in.header[head].position) + accepted;
#pragma unroll
        for (int i = 0; i < 3; ++i) {
            const float* column = in.ring + int64_t(delta_column(start, i - 3)) * o.state.channels;
            s.last[0][i][threadIdx.x] = __ldcg(column + channel[0]);
            if (warp < 4) s.last[1][i][threadIdx.x] = __ldcg(column + channel[1]);
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
                const float4 d = __ldcg(reinterpret_cast<const float4*>(in.log_d + entry * kDeltaWidth +
                                                                        q * kDeltaColumns + lane % 8 * 4));
                update(q, keep, {k.x, k.y, k.z, k.w}, {d.x, d.y, d.z, d.w});
            }
        }
    }
    __device__ __forceinline__ HeadInput input(int r) const {
        const int t = g.first_row + r;
        HeadInput in{__ldcg(o.qkv.row(t) + channel[0]), 0, 0, 0, 0};
        if (warp < 4) {
            in.v = __ldcg(o.qkv.row(t) + channel[1]);
            return in;
        }
        in.z = __ldcg(o.z.row(t) + head * kDeltaWidth + int(threadIdx.x) % kDeltaWidth);
        if (threadIdx.x != 128) return in;
        in.beta = __ldcg(o.beta.row(t) + head), in.alpha = __ldcg(o.alpha.row(t) + head);
        return in;
    }
    // Channels through convolution and silu, and the head's gates.
    __device__ __forceinline__ float convolved(int c, float x) {
        const float4 tap = s.tap[c][threadIdx.x];
        float* last[3] = {&s.last[c][0][threadIdx.x], &s.last[c][1][threadIdx.x], &s.last[c][2][threadIdx.x]};
        float m = __fmul_rn(*last[0], tap.x);
        m = __fmaf_rn(*last[1], tap.y, m);
        m = __fmaf_rn(*last[2], tap.z, m);
        *last[0] = *last[1], *last[1] = *last[2], *last[2] = x;
        return fast_silu(__fmaf_rn(x, tap.w, m));
    }
    __device__ __forceinline__ void convolve(const HeadInput& in) {
        const int of_head = int(threadIdx.x) % kDeltaWidth;
        (warp < 4 ? s.query : s.key)[of_head] = convolved(0, in.x);
        if (warp < 4) {
            s.value[of_head] = convolved(1, in.v);
            return;
        }
        s.gate[of_head] = fast_silu(in.z) * __ldg(static_cast<const float*>(o.norm.data) + of_head);
        if (threadIdx.x != 128) return;
        const float rate = __ldg(static_cast<const float*>(o.decay.data) + head),
                    bias = __ldg(static_cast<const float*>(o.dt_bias.data) + head);
        s.log_g = __fmul_rn(rate, softplus(in.alpha + bias));
        s.keep = expf(s.log_g);
        s.beta = fast_sigmoid(in.beta);
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
    // `slot`: where the cells go as well, or -1.
    __device__ __forceinline__ void change_cells(const DeltaNorms& n, int slot) {
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
            if (slot >= 0) store_cells(slot, q);
        }
    }
    // Column `lane` of quarter `warp` before its norm, the quarter's Σo², and the log's entry `logged` (< 0:
    // none).
    __device__ __forceinline__ float out(const DeltaNorms& n, int logged) {
        float by_query[kDeltaWarps];
#pragma unroll
        for (int w = 0; w < kDeltaWarps; ++w) by_query[w] = s.read_query[warp][w][lane];
        const float d = change(warp, n.key_scale);
        const float y =
            __fmaf_rn(__fmul_rn(s.keep, n.query_scale), delta_sum(by_query), __fmul_rn(d, n.key_query));
        const float squares = warp_sum(__fmul_rn(y, y));
        if (lane == 0) s.squares[warp] = squares;
        if (logged >= 0 && g.state_out >= 0) {
            const DeltaState to(p, g.state_out);
            const int64_t entry = int64_t(logged) * o.state.value_heads + head;
            const int column = warp * kDeltaColumns + lane;
            to.log_k[entry * kDeltaWidth + column] = __fmul_rn(s.key[column], n.key_scale);
            to.log_d[entry * kDeltaWidth + column] = d;
            if (column == 0) to.log_g[entry] = s.log_g;
        }
        return y;
    }
    __device__ __forceinline__ void run_row(const HeadInput& in, int r, int slot) {
        convolve(in);
        __syncthreads();
        const DeltaNorms n(delta_products(s.key, s.query, lane));
        read_cells();
        __syncthreads();
        const int column = warp * kDeltaColumns + lane;
        float y = 0, gate = 0;
        if (warp < kDeltaBlocks) y = out(n, r - folded), gate = s.gate[column];
        change_cells(n, slot);
        __syncthreads();  // the row's values are no longer read
        if (warp >= kDeltaBlocks) return;
        const float sum = (s.squares[0] + s.squares[1]) + (s.squares[2] + s.squares[3]);
        o.y.row(g.first_row + r)[head * kDeltaWidth + column] = y * rsqrtf(sum / kDeltaWidth + o.eps) * gate;
    }
    // As DeltaThread's: a channel of a state after `rows_folded` rows, with `logged` more behind them.
    __device__ __forceinline__ void write_channel(int c, int slot, int rows_folded, int logged) const {
        float* ring = DeltaState(p, slot).ring + channel[c];
#pragma unroll 1
        for (int r = rows_folded - 3; r < rows_folded + logged; ++r) {
            if (r < 0 && slot == g.state_in) continue;  // it lies there
            const int64_t column = int64_t(delta_column(start, r)) * o.state.channels;
            const float* from = r >= 0           ? o.qkv.row(g.first_row + r) + channel[c]
                                : g.state_in < 0 ? nullptr
                                                 : DeltaState(p, g.state_in).ring + channel[c] + column;
            ring[column] = from ? __ldcg(from) : 0.0f;
        }
    }
    __device__ __forceinline__ void write_ring(int slot, int rows_folded, int logged) const {
        if (owns_first) write_channel(0, slot, rows_folded, logged);
        if (warp < 4) write_channel(1, slot, rows_folded, logged);
        if (threadIdx.x == 0)
            DeltaState(p, slot).header[head] = {delta_column(start, rows_folded), logged, {0, 0}};
    }
    __device__ __forceinline__ void store_all(int slot) const {
        if (slot < 0) return;
#pragma unroll
        for (int q = 0; q < kDeltaBlocks; ++q) store_cells(slot, q);
    }
    // Where Step asks for the state after row r.
    __device__ __forceinline__ void save(int r, bool alone) const {
#pragma unroll 1
        for (int i = 0; i < g.saves; ++i) {
            const Save want = o.step.saves()[g.first_save + i];
            if (want.row != g.first_row + r) continue;
            store_all(want.state);
            if (alone) write_ring(want.state, r + 1, 0);
        }
    }
    // The segment's rows, of which the first has been read. Ring and headers of longer segments are
    // delta_ring's.
    __device__ __forceinline__ void run(const HeadInput& first) {
        const bool alone = g.rows <= kMaxVerifyRows;
        const int logged = g.rows - folded;
#pragma unroll 1
        for (int r = 0; r < g.rows; ++r) {
            const HeadInput in = r ? input(r) : first;
            if (r == folded) store_all(g.state_out);
            run_row(in, r, r + 1 == folded && !logged ? g.state_out : -1);
            if (g.saves) save(r, alone);
        }
        if (g.state_out < 0) return;
        if (!g.rows) __syncthreads(), store_all(g.state_out);  // everybody has read header and logs
        if (alone) write_ring(g.state_out, folded, logged);
    }
};

// Kernel     delta_heads: 128 registers, 24704 bytes
template <class Cell>
__global__ void __launch_bounds__(kHeadThreads, 2) delta_heads(const __grid_constant__ DeltaCall p) {
    __shared__ HeadShared s;
    let_successor_start();
    const GatedDelta& o = p.op;
    const StepHeader& h = o.step.header();
    HeadThread<Cell> me(p, s);
    const int output = me.head * kDeltaWidth + int(threadIdx.x) % kDeltaWidth;
    if (p.rank) wait_for_predecessor();
#pragma unroll 1
    for (int index = blockIdx.y; index < h.segments; index += gridDim.y) {
        if (p.rank && __ldcg(p.rank + index) >= 0) continue;
        me.g = o.step.segments()[index];
        const int early = delta_accepted_early(me.g);
        me.load_cells();
        me.load_columns(max(early, 0));
        me.folded = delta_folded(o, me.g);
        wait_for_predecessor();
        const HeadInput first = me.g.rows > 0 ? me.input(0) : HeadInput{};
        const DeltaCursor c = delta_cursor(o, me.g, delta_has_cursor(o, me.g));
        if (c.stopped) {
            for (int r = 0; r < me.g.rows && me.warp < 4; ++r) o.y.row(me.g.first_row + r)[output] = 0;
            continue;
        }
        if (c.accepted > 0) me.load_columns(c.accepted);
        if (const int accepted = max(early, c.accepted); accepted > 0) me.fold(accepted);
        me.run(first);
        __syncthreads();  // before the next segment's values
    }
    wait_for_predecessor();
    for (int t = h.rows + blockIdx.y; t < o.y.rows() && me.warp < 4; t += gridDim.y) o.y.row(t)[output] = 0;
}

}  // namespace sparkinfer::cuda
