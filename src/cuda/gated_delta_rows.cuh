// gated_delta_rows.cuh — the gated delta rule, row after row, any number of rows.
// Computes   ops.h: GatedDelta
// Shapes     qkv [T, channels]   z, y [T, n_v·128]   S [n_v, 128 (k), 128 (v)] F32
// Mapping    convolve: a block per (row, head of channels). rule: a block per (value head, segment), thread j owns column j of
//            S in registers for all rows. state: a block per segment writes what heads share.
// Memory     S once in and once out per segment, 128 KB a head; qkv and z once. Floor at one row: 2·n_v·64 KB.
// Limits     heads of 128. sm_80+.
// Tested     tests/ops/gated_delta.cpp against cpu/.
#pragma once
#include "cuda/launch.h"
#include "cuda/lib/math.cuh"
#include "cuda/lib/pdl.cuh"
#include "cuda/lib/reduce.cuh"
#include "ops/state_layout.h"

namespace sparkinfer::cuda {

struct DeltaCall {
    GatedDelta op;
    float* mixed;  // [T, channels] after convolution; q and k normalised
};

// One layer's part of one state slot.
struct DeltaState {
    StateHeader* header;
    float *s, *ring, *log_k, *log_d, *log_g;
    __device__ DeltaState(const StateLayer& l, int slot) {
        const StateLayout at = state_layout(l);
        std::byte* base = l.states + slot * l.state_bytes;
        header = reinterpret_cast<StateHeader*>(base);
        s = reinterpret_cast<float*>(base + at.s_at);
        ring = reinterpret_cast<float*>(base + at.ring_at);
        log_k = reinterpret_cast<float*>(base + at.log_k_at);
        log_d = reinterpret_cast<float*>(base + at.log_d_at);
        log_g = reinterpret_cast<float*>(base + at.log_g_at);
    }
};

__device__ inline int delta_segment(const GatedDelta& o, int row) {
    const StepHeader& h = o.step.header();
    if (!live_row(o.step, o.slots, row).present) return -1;
    for (int i = 0; i < h.segments; ++i) {
        const Segment& g = o.step.segments()[i];
        if (row >= g.first_row && row < g.first_row + g.rows) return i;
    }
    return -1;
}
__device__ inline bool delta_present(const GatedDelta& o, const Segment& g) {
    return g.rows == 0 || live_row(o.step, o.slots, g.first_row).present;
}
__device__ inline int delta_accepted(const GatedDelta& o, const Segment& g) {
    if (g.state_in < 0) return 0;
    return g.accepted >= 0 ? g.accepted : o.slots.slot(g.slot).cursor.accepted;
}
__device__ inline int delta_folded(const GatedDelta& o, const Segment& g) {
    int n = 0;
    while (n < g.rows && !(o.step.rows()[g.first_row + n].flags & kRowVerify)) ++n;
    return n;
}
// The convolution input of the segment's row r (negative: before it), or null for zeros.
__device__ inline const float* delta_input(const GatedDelta& o, const Segment& g, int accepted, int r) {
    if (r >= 0) return o.qkv.row(g.first_row + r);
    if (g.state_in < 0) return nullptr;
    const DeltaState in(o.state, g.state_in);
    const int columns = state_layout(o.state).columns;
    return in.ring + int64_t((in.header->position + accepted + r + columns) % columns) * o.state.channels;
}
__device__ inline int delta_key_head(const GatedDelta& o, int h) {
    return o.order == HeadOrder::block ? h / (o.state.value_heads / o.state.key_heads) : h % o.state.key_heads;
}

__global__ void __launch_bounds__(128) delta_convolve(const DeltaCall p) {
    __shared__ float part[32];
    wait_for_predecessor();
    const GatedDelta& o = p.op;
    const int t = blockIdx.y, head = blockIdx.x, width = o.state.width, c = head * width + threadIdx.x;
    const int index = delta_segment(o, t);
    if (index < 0) {
        if (head < o.state.value_heads) o.y.row(t)[head * width + threadIdx.x] = 0;
        return;
    }
    const Segment& g = o.step.segments()[index];
    const int taps = o.state.taps, accepted = delta_accepted(o, g);
    const float* weight = static_cast<const float*>(o.conv.data) + int64_t(c) * taps;
    float m = 0;
    for (int tap = 0; tap < taps; ++tap) {
        const float* x = delta_input(o, g, accepted, t - g.first_row - (taps - 1) + tap);
        if (x) m += x[c] * weight[tap];
    }
    m = silu(m);
    if (head < 2 * o.state.key_heads) {
        float scale = rsqrtf(block_sum(m * m, part) + 1e-6f);
        if (head < o.state.key_heads) scale *= rsqrtf(float(width));
        m *= scale;
    }
    p.mixed[int64_t(t) * o.state.channels + c] = m;
}

// S of one head while it runs: thread j holds column j.
template <int kWidth>
struct DeltaHead {
    float s[kWidth];
    __device__ void load(const float* from) {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) s[k] = from ? from[k * kWidth + threadIdx.x] : 0.0f;
    }
    __device__ void store(float* to) const {
#pragma unroll
        for (int k = 0; k < kWidth; ++k) to[k * kWidth + threadIdx.x] = s[k];
    }
    __device__ float decay_and_read(float decay, const float* key) {
        float sum[4] = {};
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
            s[k] *= decay;
            sum[k % 4] += s[k] * key[k];
        }
        return (sum[0] + sum[2]) + (sum[1] + sum[3]);
    }
    __device__ float update_and_read(const float* key, float d, const float* query) {
        float sum[4] = {};
#pragma unroll
        for (int k = 0; k < kWidth; ++k) {
            s[k] += key[k] * d;
            sum[k % 4] += s[k] * query[k];
        }
        return (sum[0] + sum[2]) + (sum[1] + sum[3]);
    }
};

template <int kWidth>
__global__ void __launch_bounds__(kWidth) delta_rule(const DeltaCall p) {
    __shared__ float key[kWidth], query[kWidth], part[32];
    wait_for_predecessor();
    const GatedDelta& o = p.op;
    const int h = blockIdx.x, j = threadIdx.x, key_head = delta_key_head(o, h);
    const int64_t cells = int64_t(kWidth) * kWidth;
    const int n_k = o.state.key_heads, n_v = o.state.value_heads;
    const float gain = static_cast<const float*>(o.norm.data)[j];
    const float rate = static_cast<const float*>(o.decay.data)[h], bias = static_cast<const float*>(o.dt_bias.data)[h];
    for (int index = blockIdx.y; index < o.step.header().segments; index += gridDim.y) {
        const Segment& g = o.step.segments()[index];
        if (!delta_present(o, g)) continue;
        DeltaHead<kWidth> head;
        head.load(g.state_in < 0 ? nullptr : DeltaState(o.state, g.state_in).s + h * cells);
        const int accepted = delta_accepted(o, g), folded = delta_folded(o, g);
        for (int i = 0; i < accepted; ++i) {
            const DeltaState in(o.state, g.state_in);
            __syncthreads();
            key[j] = in.log_k[(int64_t(i) * n_k + key_head) * kWidth + j];
            __syncthreads();
            head.decay_and_read(expf(in.log_g[i * n_v + h]), key);
            head.update_and_read(key, in.log_d[(int64_t(i) * n_v + h) * kWidth + j], key);
        }
        for (int r = 0; r < g.rows; ++r) {
            const int t = g.first_row + r, logged = r - folded;
            if (logged == 0 && g.state_out >= 0) head.store(DeltaState(o.state, g.state_out).s + h * cells);
            const float* m = p.mixed + int64_t(t) * o.state.channels;
            __syncthreads();
            query[j] = m[key_head * kWidth + j];
            key[j] = m[(n_k + key_head) * kWidth + j];
            __syncthreads();
            const float v = m[(2 * n_k + h) * kWidth + j];
            const float beta = sigmoid(o.beta.row(t)[h]), decay = rate * softplus(o.alpha.row(t)[h] + bias);
            const float d = beta * (v - head.decay_and_read(expf(decay), key));
            const float y = head.update_and_read(key, d, query);
            if (logged >= 0 && g.state_out >= 0) {
                const DeltaState out(o.state, g.state_out);
                out.log_d[(int64_t(logged) * n_v + h) * kWidth + j] = d;
                if (j == 0) out.log_g[logged * n_v + h] = decay;
            }
            const float scale = rsqrtf(block_sum(y * y, part) / kWidth + o.eps);
            o.y.row(t)[h * kWidth + j] = y * scale * gain * silu(o.z.row(t)[h * kWidth + j]);
            for (int i = g.first_save; i < g.first_save + g.saves; ++i)
                if (o.step.saves()[i].row == t) head.store(DeltaState(o.state, o.step.saves()[i].state).s + h * cells);
        }
        if (folded == g.rows && g.state_out >= 0) head.store(DeltaState(o.state, g.state_out).s + h * cells);
    }
}

// Ring, logged keys and header of a state after `folded` rows of the segment, with `logged` more behind them.
__device__ inline void delta_write_shared(const DeltaCall& p, const Segment& g, int slot, int folded, int logged) {
    const GatedDelta& o = p.op;
    const DeltaState out(o.state, slot);
    const int columns = state_layout(o.state).columns, accepted = delta_accepted(o, g), channels = o.state.channels;
    const int keys = o.state.key_heads * o.state.width;
    const int start = g.state_in < 0 ? 0 : DeltaState(o.state, g.state_in).header->position + accepted;
    const int position = (start + folded) % columns;
    for (int i = 1 - o.state.taps; i < logged; ++i) {
        const float* x = delta_input(o, g, accepted, folded + i);
        float* column = out.ring + int64_t((position + i + columns) % columns) * channels;
        if (x == column) continue;
        for (int c = threadIdx.x; c < channels; c += blockDim.x) column[c] = x ? x[c] : 0.0f;
    }
    for (int i = 0; i < logged; ++i)
        for (int c = threadIdx.x; c < keys; c += blockDim.x)
            out.log_k[int64_t(i) * keys + c] = p.mixed[int64_t(g.first_row + folded + i) * channels + keys + c];
    __syncthreads();  // everybody has read state_in's header, which may be this one
    if (threadIdx.x == 0) *out.header = {position, logged, {0, 0}};
}

__global__ void __launch_bounds__(256) delta_shared(const DeltaCall p) {
    wait_for_predecessor();
    const GatedDelta& o = p.op;
    for (int index = blockIdx.x; index < o.step.header().segments; index += gridDim.x) {
        const Segment& g = o.step.segments()[index];
        if (!delta_present(o, g)) continue;
        for (int i = g.first_save; i < g.first_save + g.saves; ++i) {
            const Save save = o.step.saves()[i];
            delta_write_shared(p, g, save.state, save.row - g.first_row + 1, 0);
            __syncthreads();
        }
        const int folded = delta_folded(o, g);
        if (g.state_out >= 0) delta_write_shared(p, g, g.state_out, folded, g.rows - folded);
    }
}

}  // namespace sparkinfer::cuda
