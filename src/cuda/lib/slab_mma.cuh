// slab_mma.cuh — one item of a slab (16 rows × 256 columns) times 16-bit activations, on the integer tensor
// cores.
//
// Columns: C = 2 or 8 vectors of int8 activations at once, 8/C groups of 32 columns side by side in one MMA,
// so that the tensor pipe does 8 MMAs per 4096 weights at any C. A vector is one plane of a token's 16-bit
// activations, the high bytes or the low ones; both planes of a group are neighbouring columns, so that a
// lane has both sums and joins them: 256 · high + low, exact in 32 bits. Groups add in one fixed order,
// whatever C.
//
// Activations reach the MMAs as Fragments, in registers (activations.cuh makes them). What a format says of
// itself: slab_forms.cuh.
#pragma once
#include "cuda/lib/slab_forms.cuh"

namespace sparkinfer::cuda {

// One item's activations as this lane's part of the MMAs' B operands. A chain is the 8/C groups of 32 columns
// that share accumulators; column n of its MMAs is plane n % 2 of group (C = 2) or token (C = 8) n / 2.
template <int kMask, int C>
struct Fragments {
    static constexpr bool kHalves = kMask & (1 << int(SlabKind::k6));
    uint32_t x[C][2];  // codes of column g: the words of its first and last 16 columns
    // Of accumulator columns 2t and 2t + 1: the scale of the joined sum, and the sum of the group's joined
    // codes, with kHalves that of its first 16 and that of its last.
    float d[C];
    int sum[C][kHalves ? 2 : 1];
    __device__ __forceinline__ int whole(int chain) const {
        return kHalves ? sum[chain][0] + sum[chain][kHalves] : sum[chain][0];
    }
};

// Partial sums of a lane: rows g and g+8 of its token, of groups i and i+4 together for C = 8, of all its
// groups for C = 2.
template <int C>
struct SlabSums {
    float v[C == 2 ? 1 : 4][2];
    __device__ __forceinline__ void clear() {
        for (auto& rows : v) rows[0] = rows[1] = 0;
    }
};

// A lane's value of one chain, into the sums. C = 8: chains 0…3, then 4…7, of one item alone.
template <int C>
struct ChainSums {
    float before[2] = {};
    __device__ __forceinline__ void add(SlabSums<C>& sums, int ch, float d, const float (&v)[2]) {
#pragma unroll
        for (int row = 0; row < 2; ++row) {
            if constexpr (C == 8) {
                float& sum = sums.v[ch & 3][row];
                sum = ch < 4 ? __fmul_rn(d, v[row]) : fmaf(d, v[row], sum);
            } else if (ch == 0) {
                before[row] = __fmul_rn(d, v[row]);
            } else {
                sums.v[0][row] += fmaf(d, v[row], before[row]);
            }
        }
    }
};

// sums[i] += item · activations x[i] (C = 8: sums =), formats with scales per 32 columns.
template <SlabKind F, int kTiles, int kMask, int C>
__device__ __forceinline__ void slab_item_32(const std::byte* a, const Fragments<kMask, C>* x, float m_factor,
                                             SlabSums<C>* sums, int lane) {
    using Form = SlabForm<F>;
    constexpr int kGroups = 8 / C,
                  kChains = C == 2 ? 2 : 1;  // accumulators by turns: MMAs wait for each other
    const int g = lane >> 2, t = lane & 3;
    const auto once = Form::once(a, g, m_factor);
    ChainSums<C> chain[kTiles];
#pragma unroll
    for (int ch = 0; ch < C; ++ch) {
        const RowScales scales = Form::scales(a, C == 8 ? ch : 4 * ch + t, g, once, m_factor);
        Accumulators c[kTiles][kChains] = {};
#pragma unroll
        for (int i = 0; i < kGroups; ++i) {
            const bool mine = kGroups == 1 || g >> 1 == i;
            const auto codes = Form::codes(a, ch * kGroups + i, lane);
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile)
                Form::multiply(c[tile][i % kChains], codes, mine ? x[tile].x[ch][0] : 0u,
                               mine ? x[tile].x[ch][1] : 0u);
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) {
            if (kChains == 2) c[tile][0] += c[tile][kChains - 1];
            const int codes = x[tile].whole(ch);
            const int2 joined = Form::joined(c[tile][0], codes);
            const float v[2] = {Form::value(scales, 0, float(joined.x), codes),
                                Form::value(scales, 1, float(joined.y), codes)};
            chain[tile].add(sums[tile], ch, x[tile].d[ch], v);
        }
    }
}

// The same for Q6_K, whose scales are per 16 columns: MMAs of 16 columns, the first half of a chain's groups
// and then the last.
template <int kTiles, int kMask, int C>
__device__ __forceinline__ void slab_item_16(const std::byte* a, const Fragments<kMask, C>* x,
                                             SlabSums<C>* sums, int lane) {
    using F = Format<Quant::q6_k_slab>;
    constexpr int kGroups = 8 / C;
    const int g = lane >> 2, t = lane & 3;
    const float2 d = half2_floats(shared1(a + F::d_at + g * 4));
    ChainSums<C> chain[kTiles];
#pragma unroll
    for (int ch = 0; ch < C; ++ch) {
        const int group = C == 8 ? ch : 4 * ch + t;
        const uint32_t scales = shared1(a + F::scales_at + group / 2 * 64 + g * 8 + group % 2 * 4);
        float v[kTiles][2];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            int c[kTiles][4] = {}, h[kTiles][4] = {};
#pragma unroll
            for (int i = ch * kGroups; i < ch * kGroups + kGroups; ++i) {
                const bool mine = kGroups == 1 || g >> 1 == i % kGroups;
                const int j = (i & 1) * 2 + half;
                const uint4 w = shared4(a + (i >> 1) * F::unit + lane * 16);
                const uint2 high = shared2(a + (i >> 1) * F::unit + 512 + lane * 8);
                const uint32_t e = j == 0   ? w.x
                                   : j == 1 ? w.y
                                   : j == 2 ? w.z
                                            : w.w,
                               y = j < 2 ? high.x : high.y, f = e & 0xf0f0f0f0u,
                               low = __funnelshift_r(y, y, 2 * half) & 0x30303030u,
                               top = __funnelshift_r(y, y, 8 + 2 * half) & 0x03030303u;
#pragma unroll
                for (int tile = 0; tile < kTiles; ++tile) {
                    const uint32_t b = mine ? x[tile].x[ch][half] : 0u;
                    mma_u8s8_k16(c[tile], e, f, b);
                    mma_u8s8_k16(h[tile], low, top, b);
                }
            }
            // Row g's words carry 16 times row g+8's nibbles, and row g+8 is 16 times its value.
            const float scale[2] = {__fmul_rn(unbiased_byte(scales, half * 2), d.x),
                                    __fmul_rn(unbiased_byte(scales, half * 2 + 1), d.y)};
#pragma unroll
            for (int tile = 0; tile < kTiles; ++tile) {
                const int codes = x[tile].sum[ch][Fragments<kMask, C>::kHalves * half];
                const int *n = c[tile], *m = h[tile],
                          sum[2] = {(n[0] - n[2] + m[0]) * 256 + (n[1] - n[3] + m[1]) - 32 * codes,
                                    (n[2] + 256 * m[2]) * 256 + (n[3] + 256 * m[3]) - 512 * codes};
#pragma unroll
                for (int row = 0; row < 2; ++row)
                    v[tile][row] = half ? fmaf(scale[row], float(sum[row]), v[tile][row])
                                        : __fmul_rn(scale[row], float(sum[row]));
            }
        }
#pragma unroll
        for (int tile = 0; tile < kTiles; ++tile) chain[tile].add(sums[tile], ch, x[tile].d[ch], v[tile]);
    }
}

template <SlabKind F, int kTiles = 1, int kMask, int C>
__device__ __forceinline__ void slab_item(const std::byte* a, const Fragments<kMask, C>* x, float m_factor,
                                          SlabSums<C>* sums, int lane) {
    if constexpr (F == SlabKind::k6)
        slab_item_16<kTiles>(a, x, sums, lane);
    else
        slab_item_32<F, kTiles>(a, x, m_factor, sums, lane);
}

// Partial sums of a slab in shared memory: [token][row][warp], rows padded against bank conflicts.
HD constexpr int red_stride(int warps) { return (warps + 3) / 4 * 4 + 4; }
template <int C>
HD constexpr int red_floats(int warps) {
    return C / 2 * 16 * red_stride(warps);
}

// A warp's 16 rows × C / 2 tokens -> its place.
template <int C>
__device__ __forceinline__ void store_sums(const SlabSums<C>& s, float* red, int warps, int own, int lane) {
    const int g = lane >> 2, t = lane & 3, stride = red_stride(warps);
#pragma unroll
    for (int row = 0; row < 2; ++row) {
        float* to = red + ((C == 2 ? 0 : t * 16) + g + 8 * row) * stride + own;
        if constexpr (C == 2) {
            float v = s.v[0][row] + __shfl_xor_sync(0xffffffffu, s.v[0][row], 1);
            v += __shfl_xor_sync(0xffffffffu, v, 2);
            if (t == 0) *to = v;
        } else {
            *to = (s.v[0][row] + s.v[1][row]) + (s.v[2][row] + s.v[3][row]);
        }
    }
}

// Row `lane % 16` of a finished slab for one token (red of it): half of the warps' sums by each half of the
// warp, then the halves.
__device__ __forceinline__ float slab_sum(const float* red, int warps, int lane) {
    const float4* v = reinterpret_cast<const float4*>(red + lane % 16 * red_stride(warps));
    float sum = 0;
#pragma unroll 2
    for (int i = lane / 16; i < (warps + 3) / 4; i += 2) {
        float4 a = v[i];
        if (4 * i + 1 >= warps) a.y = 0;
        if (4 * i + 2 >= warps) a.z = 0;
        if (4 * i + 3 >= warps) a.w = 0;
        sum += (a.x + a.y) + (a.z + a.w);
    }
    return sum + __shfl_xor_sync(0xffffffffu, sum, 16);
}

}  // namespace sparkinfer::cuda
