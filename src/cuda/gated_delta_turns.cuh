// gated_delta_turns.cuh — gated_delta_step.cuh for many segments: a block takes one after the other, and
// brings the next one's state to shared memory while it computes.
// Computes   ops.h: GatedDelta, but for segments that gated_delta_single.cuh takes
// Shapes     as gated_delta_step.cuh
// Mapping    as gated_delta_step.cuh, a cluster per value head and as many segments as there are
// Memory     as gated_delta_step.cuh
// Limits     72 registers and 38 KB, so that three blocks hide each other's exchanges. Trigger: top.
// Numbers    docs/perf/h200.md
// Tested     as gated_delta_step.cuh
#pragma once
#include "cuda/gated_delta_single.cuh"

namespace sparkinfer::cuda {

constexpr int kDeltaQueue = 64;

// What is on its way for the segment after the current one, by copies of 16 bytes that pass the first-level
// cache by; and what the next segments of the block are.
struct DeltaAhead {
    alignas(16) float cells[4][kDeltaWarps * 32][4];  // 16-bit cells: half of it
    alignas(16) float columns[2][4]
                             [kDeltaThreads];  // by turns: the convolution's 3 inputs before, the first row's
    alignas(16) float z[2][32];
    Segment segment[kDeltaQueue];
    int accepted[kDeltaQueue], position[kDeltaQueue], folded[kDeltaQueue];
    DeltaCursor cursor[kDeltaQueue];
};

// Many segments: a block takes them in turn, and brings the next one's state while it computes.
template <bool kOut>
struct DeltaTurns {
    const DeltaCall& p;
    const GatedDelta& o;
    DeltaThread<kOut>& me;
    DeltaAhead& a;
    int count;  // of the block

    // By the whole block, before a barrier.
    __device__ __forceinline__ void describe(int first) const {
        const int i = threadIdx.x;
        if (i >= min(kDeltaQueue, count - first)) return;
        const Segment g = o.step.segments()[blockIdx.y + (first + i) * gridDim.y];
        const int early = delta_accepted_early(g);
        a.segment[i] = g;
        a.accepted[i] = early;
        a.position[i] =
            g.state_in < 0 ? 0 : __ldcg(&DeltaState(p, g.state_in).header[me.head].position) + max(early, 0);
        a.folded[i] = delta_folded(o, g);
    }
    // The same, after the wait.
    __device__ __forceinline__ void describe_cursors(int first) const {
        const int i = threadIdx.x;
        if (i >= min(kDeltaQueue, count - first)) return;
        const Segment& g = a.segment[i];
        a.cursor[i] = delta_cursor(o, g, delta_has_cursor(o, g));
    }
    __device__ __forceinline__ void bring_state(int i) const {
        const Segment& g = a.segment[i % kDeltaQueue];
        const bool old = g.state_in >= 0;
        const int slot = max(g.state_in, 0), thread = threadIdx.x;
        if (!kOut) {
#pragma unroll
            for (int r = 0; r < 4; ++r) {
                if (o.state.dtype != DType::bf16)
                    async_copy(a.cells[r][thread], me.template cells<float>(slot) + r * kDeltaWidth, old);
                else if (thread % 2 == 0)
                    async_copy(a.cells[r][thread / 2], me.template cells<uint16_t>(slot) + r * kDeltaWidth,
                               old);
            }
        }
        if (thread % 4) return;
        const float* ring = DeltaState(p, slot).ring + me.channel;
#pragma unroll
        for (int r = 0; r < 3; ++r)
            async_copy(&a.columns[i % 2][r][thread],
                       ring + int64_t(delta_column(a.position[i % kDeltaQueue], r - 3)) * o.state.channels,
                       old);
    }
    // After the wait. beta and alpha of the segment's first row, to registers of warp 8.
    __device__ __forceinline__ float2 bring_input(int i) const {
        const Segment& g = a.segment[i % kDeltaQueue];
        const int thread = threadIdx.x, t = g.rows > 0 ? g.first_row : 0;
        if (thread % 4 == 0) async_copy(&a.columns[i % 2][3][thread], o.qkv.row(t) + me.channel, true);
        if (!kOut) return {};
        if (thread % 4 == 0)
            async_copy(&a.z[i % 2][me.lane],
                       o.z.row(t) + me.head * kDeltaWidth + me.rank * kDeltaColumns + me.lane, true);
        return make_float2(__ldcg(o.beta.row(t) + me.head), __ldcg(o.alpha.row(t) + me.head));
    }
    // What was brought for segment i, to registers.
    __device__ __forceinline__ DeltaInput take(int i, float2 gates) const {
        const int thread = threadIdx.x, at = i % kDeltaQueue;
        me.index = blockIdx.y + i * gridDim.y;
        me.g = a.segment[at];
        me.start = a.position[at];
        me.folded = a.folded[at];
#pragma unroll
        for (int r = 0; r < 3; ++r) me.last[r] = a.columns[i % 2][r][thread];
        const float x = a.columns[i % 2][3][thread];
        if (kOut) return {x, a.z[i % 2][me.lane], gates.x, gates.y};
#pragma unroll
        for (int r = 0; r < 4; ++r) {
            if (o.state.dtype == DType::bf16) {
                const uint2 v = reinterpret_cast<const uint2*>(a.cells[r])[thread];
                me.cell[r][0] = __uint_as_float(v.x << 16),
                me.cell[r][1] = __uint_as_float(v.x & 0xffff0000u);
                me.cell[r][2] = __uint_as_float(v.y << 16),
                me.cell[r][3] = __uint_as_float(v.y & 0xffff0000u);
            } else {
                const float4 v = *reinterpret_cast<const float4*>(a.cells[r][thread]);
                me.cell[r][0] = v.x, me.cell[r][1] = v.y, me.cell[r][2] = v.z, me.cell[r][3] = v.w;
            }
        }
        return {x, 0, 0, 0};
    }
    __device__ __forceinline__ void run(int output) const {
        int phase = 0;
        float2 gates = {};
        describe(0);
        delta_sync();
        if (count > 0) bring_state(0);
        wait_for_predecessor();
        if (count > 0) gates = bring_input(0);
        describe_cursors(0);
        cluster_wait();
#pragma unroll 1
        for (int i = 0; i < count; ++i) {
            if (i && i % kDeltaQueue == 0) {
                delta_sync();
                describe(i);
                describe_cursors(i);  // by the same threads
                delta_sync();
                bring_state(i);
                gates = bring_input(i);
            }
            async_wait();
            delta_sync();  // everybody's copies are here, and the last segment's shared memory is no longer
                           // read
            const DeltaInput next = take(i, gates);
            if (!kOut) __syncwarp();  // 16-bit cells are brought by a neighbour
            if (i + 1 < count && (i + 1) % kDeltaQueue) {
                bring_state(i + 1);
                gates = bring_input(i + 1);
            }
            if (p.rank && __ldcg(p.rank + me.index) >= 0 || delta_is_single(o, me.g)) continue;
            const int early = a.accepted[i % kDeltaQueue];
            me.fold(early);
            delta_finish_segment(me, next, a.cursor[i % kDeltaQueue], output, phase);
        }
    }
};
template <bool kOut>
__device__ __forceinline__ void delta_run_many(const DeltaCall& p, DeltaShared& s, DeltaAhead& a) {
    const GatedDelta& o = p.op;
    DeltaThread<kOut> me(p, s);
    const StepHeader& h = o.step.header();
    const int output = me.head * kDeltaWidth + me.rank * kDeltaColumns + me.lane,
              count = max(0, h.segments - int(blockIdx.y) + int(gridDim.y) - 1) / int(gridDim.y);
    bool any = false;  // of the segments of the block its own
    if (p.rank) wait_for_predecessor();
    for (int i = blockIdx.y; i < h.segments && !any; i += gridDim.y)
        any = !(p.rank && __ldcg(p.rank + i) >= 0) && !delta_is_single(o, o.step.segments()[i]);
    if (any)
        DeltaTurns<kOut>{p, o, me, a, count}.run(output);
    else
        wait_for_predecessor(), cluster_wait();
    if (kOut)
        for (int t = h.rows + blockIdx.y; t < o.y.rows(); t += gridDim.y) o.y.row(t)[output] = 0;
}

__device__ __forceinline__ void delta_begin(DeltaShared& s) {
    let_successor_start();
    if (threadIdx.x == 0) {
        barrier_init(&s.arrived[0], 1);
        barrier_init(&s.arrived[1], 1);
        barrier_init_fence();
    }
    __syncthreads();
    cluster_arrive_initialised();
}

// Kernel     delta_step: 96 registers, 9728 bytes
__global__ void __cluster_dims__(kDeltaBlocks, 1, 1) __launch_bounds__(kDeltaThreads, 2)
    delta_step(const __grid_constant__ DeltaCall p) {
    __shared__ DeltaShared s;
    delta_begin(s);
    if (threadIdx.x / 32 < kDeltaWarps)
        delta_run<false>(p, s);
    else
        delta_run<true>(p, s);
}
// REQUIRES: rows of qkv and z, and S, 16-byte aligned.
// Kernel     delta_step_many: 72 registers, 38912 bytes
__global__ void __cluster_dims__(kDeltaBlocks, 1, 1) __launch_bounds__(kDeltaThreads, 3)
    delta_step_many(const __grid_constant__ DeltaCall p) {
    __shared__ DeltaShared s;
    __shared__ DeltaAhead a;
    delta_begin(s);
    if (threadIdx.x / 32 < kDeltaWarps)
        delta_run_many<false>(p, s, a);
    else
        delta_run_many<true>(p, s, a);
}

}  // namespace sparkinfer::cuda
