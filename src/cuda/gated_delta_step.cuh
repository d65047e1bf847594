// gated_delta_step.cuh — the gated delta rule with its convolution, row after row, for one segment.
// Computes   ops.h: GatedDelta
// Shapes     qkv [T, channels]   z, y [T, n_v·128]   beta, alpha [T, n_v]   S [n_v, 128 (k), 128 (v)], F32 or
//            BF16
// Mapping    a cluster of 4 blocks per (value head, segment), 32 columns of S each, in registers: thread
//            (warp w < 8, lane) holds rows 16·w + 4·(lane/8) … + 3 of columns 4·(lane%8) … + 3. Every block
//            convolves the head's q and k itself, a channel a thread of warps 0 … 7; warp 8 has the block's
//            v, the gates, the norms and the output. S and the convolution's columns are loaded before the
//            wait. Sᵀk and Sᵀq come from one pass over the old S:
//              o = Sᵀq after the update = e^g (Sᵀq) + (k·q) d
//            The blocks exchange Σo² of up to 8 rows at a time through shared memory.
// Memory     S once in and once out per segment, 128 KB a head; qkv and z once. Floor at one row: 128·n_v KB.
// Order      What a block reads of state_in no other cluster writes, but for q and k columns of the ring:
//            with at most 8 rows in the segment none of the 3 columns that are read can be one of those that
//            are written (of 11). Longer segments leave ring and headers to delta_ring. Within a cluster,
//            headers and logs are written once each block has sent a Σo², hence read them.
// Limits     heads of 128, 4 taps. 288 threads, ≤ 96 registers, 10 KB. sm_90+ (clusters). Trigger: top.
// Numbers    docs/perf/h200.md
// Tested     tests/ops/gated_delta.cpp against float64 and cpu/.
#pragma once
#include "core/half.h"
#include "cuda/gated_delta_row.cuh"
#include "cuda/lib/copy.cuh"
#include "cuda/lib/exchange.cuh"
#include "cuda/lib/math.cuh"

namespace sparkinfer::cuda {

struct DeltaShared {
    alignas(16) float query[2][kDeltaWidth], key[2][kDeltaWidth];  // of even and odd rows, not yet normalised
    alignas(16) float read_key[kDeltaWarps][kDeltaColumns];        // Sᵀk and …
    float read_query[kDeltaWarps][kDeltaColumns];                  // … Sᵀq over the rows of one warp
    alignas(16) float value[kDeltaColumns];
    float beta, keep;  // keep = e^g
    DeltaNorms norms;
    // Of the rows since the last exchange; a column belongs to one lane of warp 8.
    float out[kDeltaBatch][kDeltaColumns], gate[kDeltaBatch][kDeltaColumns];
    float log_k[kDeltaBatch][kDeltaColumns], log_d[kDeltaBatch][kDeltaColumns],
        log_g[kDeltaBatch][kDeltaColumns];
    float squares[2][kDeltaBatch][kDeltaBlocks];  // Σo² of each block, written by that block
    alignas(8) uint64_t arrived[2];
};

// What one row brings to one thread.
struct DeltaInput {
    float x;               // its channel before the convolution
    float z, beta, alpha;  // warp 8
};

// The block's barrier, which its warps reach from two places.
__device__ __forceinline__ void delta_sync() { named_barrier(1, kDeltaThreads); }

// One thread of a block, at one segment. kOut: of warp 8.
template <bool kOut>
struct DeltaThread {
    const DeltaCall& p;
    const GatedDelta& o;
    DeltaShared& s;
    int head, rank, warp, lane;
    int channel;             // of qkv that it convolves
    bool owns_column;        // writes that channel of the ring
    float4 tap;              // weights of the channel
    float rate, bias, gain;  // warp 8: decay, dt_bias and norm
    float cell[4][4];        // S: rows, columns
    int index;               // of the segment
    Segment g;
    int start;      // ring position of the segment's first row
    float last[3];  // channel's inputs of the 3 rows before the current one
    int folded;

    __device__ __forceinline__ DeltaThread(const DeltaCall& call, DeltaShared& shared)
        : p(call), o(call.op), s(shared) {
        head = blockIdx.x / kDeltaBlocks;
        rank = cluster_rank();
        warp = threadIdx.x / 32;
        lane = threadIdx.x % 32;
        const int n_k = o.state.key_heads, n_v = o.state.value_heads, share = n_v / n_k;
        const bool block = o.order == HeadOrder::block;
        const int key_head = block ? head / share : head % n_k;
        const bool first = block ? head % share == 0 : head < n_k;
        if (kOut)
            channel = (2 * n_k + head) * kDeltaWidth + rank * kDeltaColumns + lane;
        else
            channel = (warp / 4 * n_k + key_head) * kDeltaWidth + int(threadIdx.x) % kDeltaWidth;
        owns_column = kOut || (first && warp % 4 == rank);
        tap = __ldg(static_cast<const float4*>(o.conv.data) + channel);
        if (!kOut) return;
        rate = __ldg(static_cast<const float*>(o.decay.data) + head);
        bias = __ldg(static_cast<const float*>(o.dt_bias.data) + head);
        gain = __ldg(static_cast<const float*>(o.norm.data) + rank * kDeltaColumns + lane);
    }

    __device__ __forceinline__ int row_of_s() const { return warp * 16 + lane / 8 * 4; }
    __device__ __forceinline__ int column_of_s() const { return rank * kDeltaColumns + lane % 8 * 4; }
    // Cells of a slot's S that are this thread's: row i lies i·128 further.
    template <class Cell>
    __device__ __forceinline__ Cell* cells(int slot) const {
        return reinterpret_cast<Cell*>(DeltaState(p, slot).s) +
               (int64_t(head) * kDeltaWidth + row_of_s()) * kDeltaWidth + column_of_s();
    }
    __device__ __forceinline__ void load_cells() {
        if (kOut) return;
        if (o.state.dtype == DType::bf16 && g.state_in >= 0) {
            const uint16_t* from = cells<uint16_t>(g.state_in);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint2 v = __ldcg(reinterpret_cast<const uint2*>(from + i * kDeltaWidth));
                cell[i][0] = __uint_as_float(v.x << 16), cell[i][1] = __uint_as_float(v.x & 0xffff0000u);
                cell[i][2] = __uint_as_float(v.y << 16), cell[i][3] = __uint_as_float(v.y & 0xffff0000u);
            }
            return;
        }
        const float* from = g.state_in < 0 ? nullptr : cells<float>(g.state_in);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            float4 v = make_float4(0, 0, 0, 0);
            if (from) v = __ldcg(reinterpret_cast<const float4*>(from + i * kDeltaWidth));
            cell[i][0] = v.x, cell[i][1] = v.y, cell[i][2] = v.z, cell[i][3] = v.w;
        }
    }
    __device__ __forceinline__ void store_cells(int slot) const {
        if (kOut || slot < 0) return;
        if (o.state.dtype == DType::bf16) {
            uint16_t* to = cells<uint16_t>(slot);
#pragma unroll
            for (int i = 0; i < 4; ++i)
                *reinterpret_cast<uint2*>(to + i * kDeltaWidth) =
                    make_uint2(f32_to_bf16(cell[i][0]) | uint32_t(f32_to_bf16(cell[i][1])) << 16,
                               f32_to_bf16(cell[i][2]) | uint32_t(f32_to_bf16(cell[i][3])) << 16);
            return;
        }
        float* to = cells<float>(slot);
#pragma unroll
        for (int i = 0; i < 4; ++i)
            *reinterpret_cast<float4*>(to + i * kDeltaWidth) =
                make_float4(cell[i][0], cell[i][1], cell[i][2], cell[i][3]);
    }
    __device__ __forceinline__ void load_columns(int accepted) {
        start = 0;
        last[0] = last[1] = last[2] = 0;
        if (g.state_in >= 0) {
            const DeltaState in(p, g.state_in);
            start = __ldcg(&in.header[head].position) + accepted;
#pragma unroll
            for (int i = 0; i < 3; ++i)
                last[i] = __ldcg(in.ring + int64_t(delta_column(start, i - 3)) * o.state.channels + channel);
        }
    }
    __device__ __forceinline__ void update(float keep, const float (&key)[4], const float (&d)[4]) {
#pragma unroll
        for (int i = 0; i < 4; ++i)
#pragma unroll
            for (int j = 0; j < 4; ++j) cell[i][j] = delta_cell(cell[i][j], keep, key[i], d[j]);
    }
    __device__ __forceinline__ void fold(int accepted) {
        if (kOut || accepted <= 0) return;
        const DeltaState in(p, g.state_in);
#pragma unroll 1
        for (int i = 0; i < accepted; ++i) {
            const int64_t entry = int64_t(i) * o.state.value_heads + head;
            const float4 k =
                __ldcg(reinterpret_cast<const float4*>(in.log_k + entry * kDeltaWidth + row_of_s()));
            const float4 d =
                __ldcg(reinterpret_cast<const float4*>(in.log_d + entry * kDeltaWidth + column_of_s()));
            update(expf(__ldcg(in.log_g + entry)), {k.x, k.y, k.z, k.w}, {d.x, d.y, d.z, d.w});
        }
    }
    __device__ __forceinline__ DeltaInput input(int r) const {
        const int t = g.first_row + r;
        DeltaInput in{__ldcg(o.qkv.row(t) + channel), 0, 0, 0};
        if (kOut) {
            in.z = __ldcg(o.z.row(t) + head * kDeltaWidth + rank * kDeltaColumns + lane);
            in.beta = __ldcg(o.beta.row(t) + head);
            in.alpha = __ldcg(o.alpha.row(t) + head);
        }
        return in;
    }
    __device__ __forceinline__ void convolve(const DeltaInput& in, int r);
    __device__ __forceinline__ void read_cells(int r);
    __device__ __forceinline__ void norms(int r);
    __device__ __forceinline__ void change_cells(int r, float keep, float beta, float value);
    __device__ __forceinline__ void put_out(int r, int phase);
    __device__ __forceinline__ void run_row(const DeltaInput& in, int r, int phase);
    __device__ __forceinline__ void finish(int first, int count, int phase);
    __device__ __forceinline__ void write_ring(int slot, int rows_folded, int logged) const;
    __device__ __forceinline__ void write_header(int slot, int rows_folded, int logged) const;
    __device__ __forceinline__ void save(int r, bool alone) const;
};

// The row's channel through convolution and silu; warp 8: also the gates.
template <bool kOut>
__device__ __forceinline__ void DeltaThread<kOut>::convolve(const DeltaInput& in, int r) {
    float m = __fmul_rn(last[0], tap.x);
    m = __fmaf_rn(last[1], tap.y, m);
    m = __fmaf_rn(last[2], tap.z, m);
    m = fast_silu(__fmaf_rn(in.x, tap.w, m));
    last[0] = last[1], last[1] = last[2], last[2] = in.x;
    if (!kOut) {
        float* to = warp < 4 ? s.query[r % 2] : s.key[r % 2];
        to[threadIdx.x % kDeltaWidth] = m;
        return;
    }
    const int at = r % kDeltaBatch;
    s.value[lane] = m;
    const float decay = __fmul_rn(rate, softplus(in.alpha + bias));
    s.log_g[at][lane] = decay;
    s.gate[at][lane] = fast_silu(in.z) * gain;
    if (lane == 0) s.keep = expf(decay), s.beta = fast_sigmoid(in.beta);
}

template <bool kOut>
__device__ __forceinline__ void DeltaThread<kOut>::read_cells(int r) {
    const float4 k = *reinterpret_cast<const float4*>(s.key[r % 2] + row_of_s());
    const float4 q = *reinterpret_cast<const float4*>(s.query[r % 2] + row_of_s());
    const float key[4] = {k.x, k.y, k.z, k.w}, query[4] = {q.x, q.y, q.z, q.w};
    delta_read(cell, key, query, lane, s.read_key[warp], s.read_query[warp]);
}

// Warp 8: what makes q and k of length 1.
template <bool kOut>
__device__ __forceinline__ void DeltaThread<kOut>::norms(int r) {
    const float3 of = delta_products(s.key[r % 2], s.query[r % 2], lane);
    if (lane == 0) s.norms = DeltaNorms(of);
}

template <bool kOut>
__device__ __forceinline__ void DeltaThread<kOut>::change_cells(int r, float keep, float beta, float value) {
    const float scale = s.norms.key_scale, keep_scale = __fmul_rn(keep, scale);
    const float4 k = *reinterpret_cast<const float4*>(s.key[r % 2] + row_of_s());
    const float key[4] = {__fmul_rn(k.x, scale), __fmul_rn(k.y, scale), __fmul_rn(k.z, scale),
                          __fmul_rn(k.w, scale)};
    float part[kDeltaWarps], d[4];
#pragma unroll
    for (int w = 0; w < kDeltaWarps; ++w) part[w] = s.read_key[w][lane];
    const float mine =
        delta_change(beta, value, keep_scale, delta_sum(part));  // of column `lane` of the block
#pragma unroll
    for (int j = 0; j < 4; ++j) d[j] = __shfl_sync(kWholeWarp, mine, lane % 8 * 4 + j);
    update(keep, key, d);
}

// Warp 8: the row's output before its norm, and its log entry.
template <bool kOut>
__device__ __forceinline__ void DeltaThread<kOut>::put_out(int r, int phase) {
    const int at = r % kDeltaBatch;
    float by_key[kDeltaWarps], by_query[kDeltaWarps];
#pragma unroll
    for (int w = 0; w < kDeltaWarps; ++w)
        by_key[w] = s.read_key[w][lane], by_query[w] = s.read_query[w][lane];
    const float keep = s.keep;
    const float d =
        delta_change(s.beta, s.value[lane], __fmul_rn(keep, s.norms.key_scale), delta_sum(by_key));
    const float y =
        __fmaf_rn(__fmul_rn(keep, s.norms.query_scale), delta_sum(by_query), __fmul_rn(d, s.norms.key_query));
    const float squares = warp_sum(__fmul_rn(y, y));
    if (lane < kDeltaBlocks)
        store_remote(&s.squares[phase % 2][at][rank], squares, &s.arrived[phase % 2], lane);
    s.out[at][lane] = y;
    s.log_d[at][lane] = d;
    s.log_k[at][lane] = __fmul_rn(s.key[r % 2][rank * kDeltaColumns + lane], s.norms.key_scale);
    __syncwarp();  // the next row's keep and beta replace these
}

template <bool kOut>
__device__ __forceinline__ void DeltaThread<kOut>::run_row(const DeltaInput& in, int r, int phase) {
    convolve(in, r);
    delta_sync();
    float keep = 0, beta = 0, value = 0;
    if (!kOut) {
        keep = s.keep, beta = s.beta, value = s.value[lane];
        read_cells(r);
    } else {
        norms(r);
    }
    delta_sync();
    if (!kOut)
        change_cells(r, keep, beta, value);
    else
        put_out(r, phase);
}

// Warp 8: y and log entries of rows first … first + count, once the other blocks' Σo² are here.
template <bool kOut>
__device__ __forceinline__ void DeltaThread<kOut>::finish(int first, int count, int phase) {
    barrier_wait_cluster(&s.arrived[phase % 2], uint32_t(phase / 2) & 1);
    const int column = head * kDeltaWidth + rank * kDeltaColumns + lane;
#pragma unroll 1
    for (int i = 0; i < count; ++i) {
        const float* squares = s.squares[phase % 2][i];
        const float sum = (squares[0] + squares[1]) + (squares[2] + squares[3]);
        o.y.row(g.first_row + first + i)[column] =
            s.out[i][lane] * rsqrtf(sum / kDeltaWidth + o.eps) * s.gate[i][lane];
        const int logged = first + i - folded;
        if (logged < 0 || g.state_out < 0) continue;
        const DeltaState to(p, g.state_out);
        const int64_t values = int64_t(logged) * o.state.value_heads * kDeltaWidth;
        to.log_k[values + column] = s.log_k[i][lane];
        to.log_d[values + column] = s.log_d[i][lane];
        if (rank == 0 && lane == 0) to.log_g[int64_t(logged) * o.state.value_heads + head] = s.log_g[i][lane];
    }
}

// The thread's channel of a state after `rows_folded` rows, with `logged` more behind them.
template <bool kOut>
__device__ __forceinline__ void DeltaThread<kOut>::write_ring(int slot, int rows_folded, int logged) const {
    if (!owns_column) return;
    float* ring = DeltaState(p, slot).ring + channel;
    if (!logged && rows_folded == g.rows) {  // `last` has them
#pragma unroll
        for (int i = 0; i < 3; ++i)
            if (const int r = rows_folded + i - 3; r >= 0 || slot != g.state_in)
                ring[int64_t(delta_column(start, r)) * o.state.channels] = last[i];
        return;
    }
#pragma unroll 1
    for (int r = rows_folded - 3; r < rows_folded + logged; ++r) {
        if (r < 0 && slot == g.state_in) continue;  // it lies there
        const int64_t column = int64_t(delta_column(start, r)) * o.state.channels;
        const float* from = r >= 0           ? o.qkv.row(g.first_row + r) + channel
                            : g.state_in < 0 ? nullptr
                                             : DeltaState(p, g.state_in).ring + channel + column;
        ring[column] = from ? __ldcg(from) : 0.0f;
    }
}
template <bool kOut>
__device__ __forceinline__ void DeltaThread<kOut>::write_header(int slot, int rows_folded, int logged) const {
    if (rank == 0 && lane == 0)
        DeltaState(p, slot).header[head] = {delta_column(start, rows_folded), logged, {0, 0}};
}

// Where Step asks for the state after row r.
template <bool kOut>
__device__ __forceinline__ void DeltaThread<kOut>::save(int r, bool alone) const {
#pragma unroll 1
    for (int i = 0; i < o.step.segments()[index].saves; ++i) {
        const Save want = o.step.saves()[o.step.segments()[index].first_save + i];
        if (want.row != g.first_row + r) continue;
        store_cells(want.state);
        if (!alone) continue;
        write_ring(want.state, r + 1, 0);
        if (kOut) write_header(want.state, r + 1, 0);
    }
}

// The segment's rows, of which the first has been read; `phase` counts the exchanges of this cluster. Ring
// and headers of longer segments are delta_ring's.
template <bool kOut>
__device__ __forceinline__ void delta_segment(DeltaThread<kOut>& me, DeltaInput next, int& phase) {
    const Segment& g = me.g;
    const bool alone = g.rows <= kMaxVerifyRows;
    const int logged = g.rows - me.folded;
    const bool saves = g.saves > 0;
    int first = 0;
    do {  // also once without rows: the exchange says that every block has read
        const int count = min(g.rows - first, kDeltaBatch);
        if (kOut && me.lane == 0) barrier_expect(&me.s.arrived[phase % 2], 4 * kDeltaBlocks * max(count, 1));
#pragma unroll 1
        for (int r = first; r < first + count; ++r) {
            const DeltaInput in = next;
            if (r + 1 < g.rows) next = me.input(r + 1);
            if (r == me.folded) me.store_cells(g.state_out);
            me.run_row(in, r, phase);
            if (saves) me.save(r, alone);
        }
        first += count;
        if (!count) {
            delta_sync();
            if (kOut && me.lane < kDeltaBlocks)
                store_remote(&me.s.squares[phase % 2][0][me.rank], 0, &me.s.arrived[phase % 2], me.lane);
        }
        if (first == g.rows && g.state_out >= 0) {
            if (!logged) me.store_cells(g.state_out);
            if (alone) me.write_ring(g.state_out, me.folded, logged);
        }
        if (kOut) me.finish(first - count, count, phase);
        ++phase;
    } while (first < g.rows);
    if (alone && g.state_out >= 0 && kOut) me.write_header(g.state_out, me.folded, logged);
}

// A segment whose state and first row have been read, and folded where the step says so; after the wait.
template <bool kOut>
__device__ __forceinline__ void delta_finish_segment(DeltaThread<kOut>& me, const DeltaInput& next,
                                                     const DeltaCursor& c, int output, int& phase) {
    if (c.stopped) {
        if (kOut)
            for (int r = 0; r < me.g.rows; ++r) me.o.y.row(me.g.first_row + r)[output] = 0;
        return;
    }
    if (c.accepted > 0) {
        me.load_columns(c.accepted);
        me.fold(c.accepted);
    }
    delta_segment(me, next, phase);
}

template <bool kOut>
__device__ __forceinline__ void delta_run(const DeltaCall& p, DeltaShared& s) {
    const GatedDelta& o = p.op;
    DeltaThread<kOut> me(p, s);
    const StepHeader& h = o.step.header();
    const int output = me.head * kDeltaWidth + me.rank * kDeltaColumns + me.lane;
    bool waited = false;
    int phase = 0;
    int& index = me.index;
    for (index = blockIdx.y; index < h.segments || !waited; index += gridDim.y) {
        int early = 0;
        bool cursor = false;
        if (index < h.segments) {
            me.g = o.step.segments()[index];
            early = delta_accepted_early(me.g);
            me.load_cells();
            me.load_columns(max(early, 0));
            me.folded = delta_folded(o, me.g);
            cursor = delta_has_cursor(o, me.g);
            me.fold(early);
        }
        if (!waited) {
            wait_for_predecessor();
            cluster_wait();
            waited = true;
        } else {
            delta_sync();  // the last segment's shared memory is no longer read
        }
        if (index >= h.segments) break;
        if (p.rank && __ldcg(p.rank + index) >= 0) continue;
        const DeltaInput next = me.g.rows > 0 ? me.input(0) : DeltaInput{};
        delta_finish_segment(me, next, delta_cursor(o, me.g, cursor), output, phase);
    }
    if (kOut)
        for (int t = h.rows + blockIdx.y; t < o.y.rows(); t += gridDim.y) o.y.row(t)[output] = 0;
}

}  // namespace sparkinfer::cuda
