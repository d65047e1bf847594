// gated_delta_state.cuh — recurrent states on the device: where they lie, and the parts that heads share.
// Computes   ops.h: GatedDelta: ring and headers of the states that a step leaves   (state_layout.h)
// Shapes     qkv [T, channels]   ring [11, channels] F32   header [n_v]
// Mapping    delta_ring: a block per (segment, value head), which has the head's header and a share of the
//            channels.
// Memory     up to 11 columns of `channels` floats per state that is written.
// Limits     4 taps, n_v ≤ 256. sm_80+.
// Numbers    docs/perf/h200.md
// Tested     tests/ops/gated_delta.cpp against float64 and cpu/.
#pragma once
#include "cuda/launch.h"
#include "cuda/lib/pdl.cuh"
#include "ops/state_layout.h"

namespace sparkinfer::cuda {

constexpr int kDeltaWidth = 128, kDeltaTaps = 4;
constexpr int kDeltaRingColumns = kDeltaTaps - 1 + kMaxVerifyRows;

struct DeltaCall {
    GatedDelta op;
    StateLayout at;       // of op.state
    const int32_t* rank;  // DeltaPlan's: segments that are the chunk kernels' have one ≥ 0. Null: none are.
};

// One layer's part of one state slot.
struct DeltaState {
    StateHeader* header;  // [n_v], all the same
    std::byte* s;         // of StateLayer::dtype
    float *ring, *log_k, *log_d, *log_g;
    __device__ DeltaState(const DeltaCall& p, int slot) {
        const StateLayout& at = p.at;
        std::byte* base = p.op.state.states + slot * p.op.state.state_bytes;
        header = reinterpret_cast<StateHeader*>(base);
        s = base + at.s_at;
        ring = reinterpret_cast<float*>(base + at.ring_at);
        log_k = reinterpret_cast<float*>(base + at.log_k_at);
        log_d = reinterpret_cast<float*>(base + at.log_d_at);
        log_g = reinterpret_cast<float*>(base + at.log_g_at);
    }
};

// REQUIRES: after the wait, as the cursor may be a row's.
__device__ inline bool delta_present(const GatedDelta& o, const Segment& g) {
    return g.rows == 0 || live_row(o.step, o.slots, g.first_row).present;
}
// Logged rows to fold, if the step says so; -1: the cursor does.
__device__ inline int delta_accepted_early(const Segment& g) { return g.state_in < 0 ? 0 : g.accepted; }
__device__ inline int delta_accepted(const GatedDelta& o, const Segment& g) {
    const int early = delta_accepted_early(g);
    return early >= 0 ? early : o.slots.slot(g.slot).cursor.accepted;
}
__device__ __forceinline__ bool delta_has_cursor(const GatedDelta& o, const Segment& g) {
    return g.rows > 0 && o.step.rows()[g.first_row].flags & kRowFromCursor;
}
// What a segment's cursor says, where it is asked.
struct DeltaCursor {
    bool stopped;
    int accepted;  // logged rows to fold
};
__device__ __forceinline__ DeltaCursor delta_cursor(const GatedDelta& o, const Segment& g, bool cursor) {
    DeltaCursor c{false, 0};
    if (!cursor && delta_accepted_early(g) >= 0) return c;
    const Cursor& from = o.slots.slot(g.slot).cursor;
    const int32_t stopped = from.stopped, accepted = from.accepted;  // one wait for both
    if (cursor) c.stopped = stopped != 0;
    if (delta_accepted_early(g) < 0) c.accepted = accepted;
    return c;
}
__device__ inline int delta_folded(const GatedDelta& o, const Segment& g) {
    int n = g.rows;  // what is only logged is at the end, and little
#pragma unroll 1
    while (n > 0 && o.step.rows()[g.first_row + n - 1].flags & kRowVerify) --n;
    return n;
}
// Of the segment's row r (negative: before it), counted from the state's `start`.
__device__ inline int delta_column(int start, int r) {
    return (start + r + kDeltaRingColumns) % kDeltaRingColumns;
}

// The block's header and channels of a state after `folded` rows of the segment, with `logged` more behind
// them.
__device__ inline void delta_write_ring(const DeltaCall& p, const Segment& g, int slot, int folded,
                                        int logged) {
    const GatedDelta& o = p.op;
    const DeltaState out(p, slot);
    const int head = blockIdx.y, heads = o.state.value_heads;
    const int first = head * o.state.channels / heads, last = (head + 1) * o.state.channels / heads;
    const int start =
        g.state_in < 0 ? 0 : DeltaState(p, g.state_in).header[head].position + delta_accepted(o, g);
    for (int r = folded - 3; r < folded + logged; ++r) {
        const int64_t column = int64_t(delta_column(start, r)) * o.state.channels;
        if (r < 0 && slot == g.state_in) continue;
        const float* x = r >= 0           ? o.qkv.row(g.first_row + r)
                         : g.state_in < 0 ? nullptr
                                          : DeltaState(p, g.state_in).ring + column;
        for (int c = first + int(threadIdx.x); c < last; c += blockDim.x)
            out.ring[column + c] = x ? __ldcg(x + c) : 0.0f;
    }
    __syncthreads();  // everybody has read state_in's header, which may be this one
    if (threadIdx.x == 0) out.header[head] = {delta_column(start, folded), logged, {0, 0}};
}

// Behind delta_step, for long segments. Saves first: they may need columns of state_in that state_out
// overwrites.
// Kernel     delta_ring: 40 registers
__global__ void __launch_bounds__(256) delta_ring(const __grid_constant__ DeltaCall p) {
    wait_for_predecessor();
    let_successor_start();
    const GatedDelta& o = p.op;
    for (int index = blockIdx.x; index < o.step.header().segments; index += gridDim.x) {
        const Segment& g = o.step.segments()[index];
        if (g.rows <= kMaxVerifyRows || !delta_present(o, g)) continue;  // delta_step has written the former
        for (int i = g.first_save; i < g.first_save + g.saves; ++i) {
            const Save save = o.step.saves()[i];
            delta_write_ring(p, g, save.state, save.row - g.first_row + 1, 0);
            __syncthreads();
        }
        const int folded = delta_folded(o, g);
        if (g.state_out >= 0) delta_write_ring(p, g, g.state_out, folded, g.rows - folded);
    }
}

}  // namespace sparkinfer::cuda
