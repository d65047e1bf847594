// slab_planes.cuh — two to eight rows as planes, once for all blocks of a product: what linear_slab_long.cuh
// reads.
// Computes   x (times the norm's gains) as activations.cuh has it, and Σx² of its items
// Shapes     x [2 ≤ T ≤ 8, K]   planes [K / 256][tiles of four rows][7][32 lanes] of 16 bytes   squares
//            [T][kMostItems] F32
// Mapping    a warp per (item, row), four rows a block.
// Memory     x once and planes once, 4 and 3.5 bytes a value: nothing beside the weights.
// Limits     64 registers. Trigger: top.
// Numbers    docs/perf/h200.md
// Tested     as linear_slab.cuh
#pragma once
#include "cuda/linear_slab_call.cuh"

namespace sparkinfer::cuda {

// A lane's words of a tile's item: Fragments::x, two groups in 16 bytes, the scales of groups, the sums and
// d.
constexpr int kPlanePiece = 7 * 32;

struct SlabPlanes {
    SlabLinear linear;  // x, norm, rows; planes and squares: where they go
    uint4* planes;
    float* squares;
};

// A tile's fragments of an item.
template <int kMask>
__device__ __forceinline__ void read_planes(Fragments<kMask, kTileTokens>& f, const uint4* from, int lane) {
    using Of = Fragments<kMask, kTileTokens>;
    uint4 v[7];
#pragma unroll
    for (int i = 0; i < 7; ++i) v[i] = __ldcg(from + i * 32 + lane);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        f.x[2 * i][0] = v[i].x, f.x[2 * i][1] = v[i].y;
        f.x[2 * i + 1][0] = v[i].z, f.x[2 * i + 1][1] = v[i].w;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        f.scale[4 * i] = __uint_as_float(v[4 + i].x), f.scale[4 * i + 1] = __uint_as_float(v[4 + i].y);
        f.scale[4 * i + 2] = __uint_as_float(v[4 + i].z), f.scale[4 * i + 3] = __uint_as_float(v[4 + i].w);
    }
    f.sum32[0] = v[6].x;
    f.sum16[0] = v[6].y;
    if (Of::kSums16) f.sum16[Of::kSums16] = v[6].z;
    f.d = __uint_as_float(v[6].w);
}

// Kernel     slab_planes: 64 registers
__global__ void __launch_bounds__(kTileTokens * 32) slab_planes(const __grid_constant__ SlabPlanes p) {
    let_successor_start();
    const SlabLinear& l = p.linear;
    const int lane = threadIdx.x % 32, token = threadIdx.x / 32, item = blockIdx.x, tile = blockIdx.y,
              r = tile * kTileTokens + token, s = lane >> 2, t = lane & 3;
    PlaneValues x, gain;
    if (l.norm)
        gain.load(
            [&](int k) { return __ldg(reinterpret_cast<const float2*>(l.norm + item * kSlabColumns + k)); },
            lane);
    wait_for_predecessor();
    if (r >= l.rows) return;
    const float* row = source_row(l, r) + item * kSlabColumns;
    x.load([&](int k) { return load2_l2(row + k); }, lane);
    const float squares = item_sum(x.squares());
    if (lane == 0) p.squares[r * kMostItems + item] = squares;
    if (l.norm)
#pragma unroll
        for (int i = 0; i < 8; ++i) x.v[i] *= gain.v[i];
    const Planes planes(x);
    uint4* to = p.planes + (item * gridDim.y + tile) * kPlanePiece;
    // Group s is half of the 16 bytes of lanes token · 8 + plane · 4 + t.
    uint2* x_to = reinterpret_cast<uint2*>(to + s / 2 * 32 + token * 8 + t) + s % 2;
    x_to[0] = make_uint2(planes.high[0], planes.high[1]);
    x_to[8] = make_uint2(planes.low[0], planes.low[1]);
    // Scales, and d, are what the lanes with t = token want, all g of them; a group's lanes write two each.
    float* scales = reinterpret_cast<float*>(to + (4 + s / 4) * 32) + s % 4;
    scales[(4 * t + token) * 4] = scales[(4 * (t + 4) + token) * 4] = planes.scale;
    // Lanes of the token's columns: sums of groups 2t, 2t+1, and of 16 columns.
    const auto pair = [&](float a, float b, int first, int second) {
        return sums_plane(__shfl_sync(kWholeWarp, a, first), __shfl_sync(kWholeWarp, b, second), lane & 4);
    };
    const float both = planes.sum[0] + planes.sum[1];
    const uint32_t of32 = pair(both, both, 8 * t, 8 * t + 4),
                   a = pair(planes.sum[0], planes.sum[1], 4 * t, 4 * t),
                   b = pair(planes.sum[0], planes.sum[1], 4 * t + 16, 4 * t + 16);
    if (lane >= 8) return;
    uint32_t* last = reinterpret_cast<uint32_t*>(to + 6 * 32);
    uint32_t* own = last + (token * 8 + lane) * 4;
    own[0] = of32, own[1] = a, own[2] = b;
    last[(lane * 4 + token) * 4 + 3] = __float_as_uint(planes.d);
}

}  // namespace sparkinfer::cuda
