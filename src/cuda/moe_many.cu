// moe_many.cu — experts over many rows: rows in the order of their experts, one grouped product each way, and
// the weighted sum of what comes back.   (ops.h: MoeGlu, MoeDownAdd)
#include "cuda/expert_order.h"
#include "cuda/lib/math.cuh"
#include "cuda/lib/pdl.cuh"
#include "cuda/lib/slab_half.cuh"
#include "cuda/linear_generic.cuh"
#include "cuda/many_rows.h"
#include "cuda/slab_gemm.h"

namespace sparkinfer::cuda {
namespace {

struct CombinePlaces {
    const __half* down;    // [places, D] of the experts, as SlabMode::half leaves it
    const float* factor;   // [places] of the packed rows
    const float* scale;    // Weight::scale of the down matrix
    const int8_t* powers;  // [E, D] of its rows
    float undo;
    const float* shared;         // [T, D] or null: of the shared expert, with shared_scalar, or
    const __half* shared_half;   // the same as `down`, a row a token; its scalar is in shared_factor
    const float* shared_factor;  // [T]
    const float* shared_scale;
    const int8_t* shared_powers;  // [D]
    float shared_undo;
    const float* shared_scalar;  // [T, 1] or null
    int64_t scalar_stride;
    const int32_t* place;  // [T, K]
    const int32_t* id;     // [T, K]
    const float* weight;   // [T, K]
    float* x;              // [T, D]
    int64_t stride;
    int32_t width, k;
    bool aligned;  // rows of x, to 16 bytes
};
// sum += by · four FP16 products, each times its row's power.
__device__ __forceinline__ void add_halves(float4& sum, const __half* from, const int8_t* powers, float by) {
    const uint2 v = *reinterpret_cast<const uint2*>(from);
    const float2 a = half2_floats(v.x), b = half2_floats(v.y);
    const char4 power = *reinterpret_cast<const char4*>(powers);
    sum.x = fmaf(by * power_of_two(-power.x), a.x, sum.x),
    sum.y = fmaf(by * power_of_two(-power.y), a.y, sum.y);
    sum.z = fmaf(by * power_of_two(-power.z), b.x, sum.z),
    sum.w = fmaf(by * power_of_two(-power.w), b.y, sum.w);
}
// x[t] += Σ_j weight · down[place], in the order of j, + the shared expert. Four columns a thread.
// Kernel     combine_places: 48 registers
__global__ void __launch_bounds__(256) combine_places(const CombinePlaces p) {
    wait_for_predecessor();
    let_successor_start();
    const int r = blockIdx.y, i = 4 * (blockIdx.x * blockDim.x + threadIdx.x);
    const int32_t* place = p.place + int64_t(r) * p.k;
    if (i >= p.width || place[0] < 0) return;
    const float undo = p.undo * p.scale[0];
    float4 sum = make_float4(0, 0, 0, 0);
#pragma unroll 4
    for (int j = 0; j < p.k; ++j) {
        const int at = place[j];
        add_halves(sum, p.down + int64_t(at) * p.width + i,
                   p.powers + int64_t(p.id[r * p.k + j]) * p.width + i,
                   p.weight[r * p.k + j] * (undo * p.factor[at]));
    }
    if (p.shared_half)
        add_halves(sum, p.shared_half + int64_t(r) * p.width + i, p.shared_powers + i,
                   p.shared_undo * p.shared_scale[0] * p.shared_factor[r]);
    if (p.shared) {
        const float by = p.shared_scalar ? sigmoid(p.shared_scalar[r * p.scalar_stride]) : 1.0f;
        const float4 v = *reinterpret_cast<const float4*>(p.shared + int64_t(r) * p.width + i);
        sum.x = fmaf(by, v.x, sum.x), sum.y = fmaf(by, v.y, sum.y);
        sum.z = fmaf(by, v.z, sum.z), sum.w = fmaf(by, v.w, sum.w);
    }
    float* x = p.x + r * p.stride + i;
    if (p.aligned) {
        float4 y = *reinterpret_cast<float4*>(x);
        y.x += sum.x, y.y += sum.y, y.z += sum.z, y.w += sum.w;
        *reinterpret_cast<float4*>(x) = y;
    } else {
        x[0] += sum.x, x[1] += sum.y, x[2] += sum.z, x[3] += sum.w;
    }
}

}  // namespace

bool lower_many(Lowering& l, const MoeGlu& op) {
    const int32_t rows = op.x.rows(), k = op.router.top_k;
    if (rows <= kFewRows || op.gate.pairing != Pairing::gate || !has_slab_gemm(op.gate) ||
        op.gate.experts > kMostOrderedExperts)
        return false;
    const ExpertOrder order =
        add_ordered_rows(l, op.step, op.slots, op.logits, op.router,
                         expert_tile_rows(l, rows * k, int32_t(op.logits.cols())), &op.y)
            .order;
    NormedRows packed{};
    const PackedRows x = l.kept(op.norm.data, packed) && packed.of == op.x.data
                             ? spread_places(l, packed.rows, rows, order, k)
                             : pack_places(l, normed_rows_of(op.x, op.norm, op.eps), order, k);
    add_expert_gemm(l, x, order, {op.gate, static_cast<float*>(op.y.data), op.y.stride}, SlabMode::glu, k,
                    op.gate.out);
    return true;
}

// What combine needs of the shared expert; few rows of a slab product are added to x at once.
static void add_shared(Lowering& l, const MoeDownAdd& op, const ExpertOrder& order, CombinePlaces& p) {
    if (!op.shared_down.data) return;
    const int32_t rows = op.x.rows(), width = int32_t(op.x.cols());
    if (has_slab_gemm(op.shared_down)) {
        RowSource h = rows_of(op.shared_gate);
        h.up = static_cast<const float*>(op.shared_up.data);
        h.up_stride = op.shared_up.stride;
        h.activation = op.activation;
        h.weight = static_cast<const float*>(op.shared_scalar.data);
        h.weight_stride = op.shared_scalar.stride;
        h.present = order.place;
        h.present_stride = op.router.top_k;
        const PackedRows packed = pack_rows(l, h);
        const bool half = rows >= kManyRows;
        const Product product{op.shared_down,
                              half ? reinterpret_cast<float*>(l.scratch<__half>(int64_t(rows) * width))
                                   : static_cast<float*>(op.x.data),
                              half ? width : op.x.stride};
        add_slab_gemm(l, packed, rows, {&product, 1}, half ? SlabMode::half : SlabMode::add);
        if (!half) return;
        p.shared_half = reinterpret_cast<const __half*>(product.y);
        p.shared_factor = packed.factor, p.shared_scale = op.shared_down.scale;
        p.shared_powers = row_powers_of(op.shared_down);
        p.shared_undo = half_undo(op.shared_down, op.shared_down.in);
        return;
    }
    float* y = l.scratch<float>(int64_t(rows) * width);
    float* h = l.scratch<float>(int64_t(rows) * op.shared_down.in);
    add_glu_rows(l, op.shared_gate, op.shared_up, h, op.activation);
    add_linear_generic(l, {h, y, op.shared_down.in, width, op.shared_down, nullptr, rows, 1, false});
    p.shared = y;
    p.shared_scalar = static_cast<const float*>(op.shared_scalar.data),
    p.scalar_stride = op.shared_scalar.stride;
}

bool lower_many(Lowering& l, const MoeDownAdd& op) {
    const int32_t rows = op.x.rows(), k = op.router.top_k, width = int32_t(op.x.cols());
    if (rows <= kFewRows || !has_slab_gemm(op.down) || op.down.experts > kMostOrderedExperts) return false;
    const auto [routed, order] = add_ordered_rows(l, op.step, op.slots, op.logits, op.router,
                                                  expert_tile_rows(l, rows * k, int32_t(op.logits.cols())));
    RowSource h = rows_of(op.h);
    h.rows = rows * k, h.columns = op.down.in, h.inner = k, h.inner_stride = op.down.in;
    const PackedRows packed = pack_places(l, h, order, 1);
    __half* down = l.scratch<__half>(int64_t(order.places) * width);
    add_expert_gemm(l, packed, order, {op.down, reinterpret_cast<float*>(down), width}, SlabMode::half);
    CombinePlaces p{};
    p.down = down, p.factor = packed.factor, p.scale = op.down.scale, p.powers = row_powers_of(op.down);
    p.undo = half_undo(op.down, op.down.in);
    p.place = order.place, p.id = routed.id, p.weight = routed.weight;
    p.x = static_cast<float*>(op.x.data), p.stride = op.x.stride;
    p.width = width, p.k = k;
    p.aligned = op.x.stride % 4 == 0 && reinterpret_cast<uintptr_t>(op.x.data) % 16 == 0;
    add_shared(l, op, order, p);
    l.add(combine_places, dim3((width / 4 + 255) / 256, rows), dim3(256), 0, p, "combine");
    return true;
}

}  // namespace sparkinfer::cuda
