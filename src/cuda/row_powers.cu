// row_powers.cu — the power of two by which each row of a slab weight may be multiplied in FP16
// (slab_half.cuh).
#include "cuda/lib/reduce.cuh"
#include "cuda/repack.h"
#include "quant/formats.h"

namespace sparkinfer::cuda {
namespace {

struct RowPowers {
    const std::byte* slabs;
    int64_t count;
    int32_t items, relative;  // of a slab; power of M beyond that of D
    int8_t* to;               // [count, 16]
};

// The greatest |D| and |M| of a row in one item.
template <Quant kSlab>
__device__ float2 greatest(const std::byte* item, int row) {
    using F = Format<kSlab>;
    const int g = row % 8, half = row / 8;
    const auto at = [&](int byte) {
        return f16_to_f32(uint16_t(slab_load(item + byte) >> (16 * half) & 0xffff));
    };
    if constexpr (kSlab == Quant::q8_0_slab) {
        float most = 0;
        for (int group = 0; group < 8; ++group)
            most =
                fmaxf(most, fabsf(at(F::unit * (group / 2) + F::scales_in_unit + 8 * g + 4 * (group % 2))));
        return {most, 0};
    } else if constexpr (kSlab == Quant::q6_k_slab) {
        return {fabsf(at(F::d_at + 4 * g)) * (half ? 16.0f : 1.0f), 0};
    } else {
        const SlabScales s = slab_scales(item + F::scales_at, {0, 4 * g, 0, 0, half}, 0);
        return {fabsf(s.d), fabsf(s.m)};
    }
}

// A warp a slab; a lane half of a row's items. The greatest D lands in [2^14, 2^15), or lower where M would
// leave FP16 otherwise.
// Kernel     find_row_powers: 40 registers
template <Quant kSlab>
__global__ void __launch_bounds__(256) find_row_powers(const RowPowers p) {
    const int64_t slab = int64_t(blockIdx.x) * 8 + threadIdx.x / 32;
    if (slab >= p.count) return;
    const int lane = threadIdx.x % 32, row = lane % 16;
    const std::byte* at = p.slabs + slab * p.items * Format<kSlab>::item;
    float d = 0, m = 0;
    for (int i = lane / 16; i < p.items; i += 2) {
        const float2 v = greatest<kSlab>(at + int64_t(i) * Format<kSlab>::item, row);
        d = fmaxf(d, v.x), m = fmaxf(m, v.y);
    }
    d = fmaxf(d, __shfl_xor_sync(kWholeWarp, d, 16));
    m = fmaxf(m, __shfl_xor_sync(kWholeWarp, m, 16));
    const auto exponent = [](float v) { return int(__float_as_uint(v) >> 23 & 255) - 127; };
    int power = d > 0 ? 14 - exponent(d) : 0;
    if (m > 0) power = min(power, 22 - (exponent(m) + p.relative));
    const int most = kSlab == Quant::q8_0_slab ? 15 : 40;  // of Q8_0 the power itself is an FP16 number
    if (lane < 16) p.to[slab * 16 + row] = int8_t(max(min(power, most), -40));
}

}  // namespace

void row_powers(const std::byte* slabs, int64_t count, int32_t columns, Quant file, const SlabPowers& powers,
                int8_t* to, cudaStream_t stream) {
    const RowPowers p{slabs, count, columns / kSlabColumns, powers.d - powers.m, to};
    const unsigned grid = unsigned((count + 7) / 8);
    switch (file) {
        case Quant::q4_k: find_row_powers<Quant::q4_k_slab><<<grid, 256, 0, stream>>>(p); return;
        case Quant::q5_k: find_row_powers<Quant::q5_k_slab><<<grid, 256, 0, stream>>>(p); return;
        case Quant::q6_k: find_row_powers<Quant::q6_k_slab><<<grid, 256, 0, stream>>>(p); return;
        case Quant::q8_0: find_row_powers<Quant::q8_0_slab><<<grid, 256, 0, stream>>>(p); return;
        default: return;  // no kernel multiplies these in FP16
    }
}

}  // namespace sparkinfer::cuda
