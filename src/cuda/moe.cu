// moe.cu — experts: which ones, their gate and up, their down with the shared expert.
// (ops.h: MoeGlu, MoeDownAdd)
#include "cuda/expert_order.h"
#include "cuda/lib/math.cuh"
#include "cuda/linear_generic.cuh"
#include "cuda/many_rows.h"
#include "cuda/matrix_planes.h"
#include "cuda/moe_slab.h"

namespace sparkinfer::cuda {

struct ExpertGlu {
    const float* gate;
    const float* up;
    Tensor y;           // [T, K, F]
    const int32_t* id;  // [T·K]
    Activation activation;
};
// Kernel     expert_glu: 32 registers
__global__ void __launch_bounds__(256) expert_glu(const ExpertGlu p) {
    wait_for_predecessor();
    const int k = p.y.shape[1], ffn = p.y.shape[2];
    const int64_t at = int64_t(blockIdx.y) * ffn;
    const bool present = p.id[blockIdx.y] >= 0;
    float* y = p.y.row(blockIdx.y / k) + int64_t(blockIdx.y % k) * ffn;
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < ffn; i += gridDim.x * blockDim.x)
        y[i] = present ? activate(p.activation, p.gate[at + i]) * p.up[at + i] : 0;
}

constexpr int32_t kPlanesTileRows = 64;  // of an expert, where no slab kernel takes it

// [T·K, F] of gate and up; answers with the experts of the pairs.
static const int32_t* add_gate_up(Lowering& l, const MoeGlu& op, float* gate, float* up) {
    const int32_t rows = op.x.rows(), width = int32_t(op.x.cols()), k = op.router.top_k, ffn = op.gate.out;
    if (rows > kFewRows && op.gate.experts <= kMostOrderedExperts) {
        const auto [routed, order] =
            add_ordered_rows(l, op.step, op.slots, op.logits, op.router, kPlanesTileRows);
        const PackedRows x = add_pack_planes(l,
                                             {static_cast<const float*>(op.x.data), op.x.stride, rows, width,
                                              static_cast<const float*>(op.norm.data), op.eps},
                                             order, k);
        add_expert_planes(l, x, order, op.gate, gate, ffn, true);
        add_expert_planes(l, x, order, op.up, up, ffn, true);
        return routed.id;
    }
    const Routed routed = add_route(l, op.step, op.slots, op.logits, op.router, false);
    float* n = l.scratch<float>(int64_t(rows) * width);
    add_rms_norm(l, rows,
                 {static_cast<const float*>(op.x.data), op.x.stride, static_cast<const float*>(op.norm.data),
                  n, width, op.eps, nullptr});
    const GenericLinear both[] = {{n, gate, width, ffn, op.gate, routed.id, rows * k, k, false},
                                  {n, up, width, ffn, op.up, routed.id, rows * k, k, false}};
    add_linears_generic(l, both);
    return routed.id;
}

void lower(Lowering& l, const MoeGlu& op) {
    if (lower_slab(l, op) || lower_many(l, op)) return;
    const int32_t rows = op.x.rows(), k = op.router.top_k, ffn = op.gate.out;
    float* gate = l.scratch<float>(int64_t(rows) * k * ffn);
    float* up = l.scratch<float>(int64_t(rows) * k * ffn);
    const int32_t* id = add_gate_up(l, op, gate, up);
    l.add(expert_glu, dim3((ffn + 255) / 256, rows * k), dim3(256), 0, {gate, up, op.y, id, op.activation},
          "glu");
}

struct Combine {
    const float* down;           // [T, K, D] of the experts
    const float* shared;         // [T, D] or null
    const float* shared_scalar;  // [T, 1] or null
    int64_t scalar_stride;
    const int32_t* id;
    const float* weight;  // [T, K]
    float* x;             // [T, D]
    int64_t stride;
    int32_t width, k;
};
// Kernel     combine: 40 registers
__global__ void __launch_bounds__(256) combine(const Combine p) {
    wait_for_predecessor();
    const int r = blockIdx.y;
    if (p.id[r * p.k] < 0) return;
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.width) return;
    float sum = 0;
    for (int j = 0; j < p.k; ++j) sum += p.weight[r * p.k + j] * p.down[(int64_t(r) * p.k + j) * p.width + i];
    if (p.shared)
        sum += (p.shared_scalar ? sigmoid(p.shared_scalar[r * p.scalar_stride]) : 1.0f) *
               p.shared[int64_t(r) * p.width + i];
    p.x[r * p.stride + i] += sum;
}

void lower(Lowering& l, const MoeDownAdd& op) {
    if (lower_slab(l, op) || lower_many(l, op)) return;
    const int32_t rows = op.x.rows(), width = int32_t(op.x.cols()), k = op.router.top_k, ffn = op.down.in;
    float* down = l.scratch<float>(int64_t(rows) * k * width);
    Routed routed;
    if (rows > kFewRows && op.down.experts <= kMostOrderedExperts) {
        const OrderedRows ordered =
            add_ordered_rows(l, op.step, op.slots, op.logits, op.router, kPlanesTileRows);
        routed = ordered.routed;
        const PlaneRows h{
            static_cast<const float*>(op.h.data), op.h.stride, rows * k, ffn, nullptr, 0, nullptr, k, ffn};
        add_expert_planes(l, add_pack_planes(l, h, ordered.order, 1), ordered.order, op.down, down, width,
                          true);
    } else {
        routed = add_route(l, op.step, op.slots, op.logits, op.router, false);
        add_linear_generic(l, {static_cast<const float*>(op.h.data), down, op.h.stride, width, op.down,
                               routed.id, rows * k, 1, false, k, ffn});
    }
    float* shared = nullptr;
    if (op.shared_down.data) {
        float* h = l.scratch<float>(int64_t(rows) * op.shared_down.in);
        shared = l.scratch<float>(int64_t(rows) * width);
        add_glu_rows(l, op.shared_gate, op.shared_up, h, op.activation);
        add_linear_generic(l, {h, shared, op.shared_down.in, width, op.shared_down, nullptr, rows, 1, false});
    }
    l.add(combine, dim3((width + 255) / 256, rows), dim3(256), 0,
          {down, shared, static_cast<const float*>(op.shared_scalar.data), op.shared_scalar.stride, routed.id,
           routed.weight, static_cast<float*>(op.x.data), op.x.stride, width, k},
          "combine");
}

struct GluRows {
    Tensor gate, up;
    float* y;
    Activation activation;
};
// Kernel     glu_rows: 32 registers
__global__ void __launch_bounds__(256) glu_rows(const GluRows p) {
    wait_for_predecessor();
    const int r = blockIdx.y, n = int(p.gate.cols());
    for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < n; i += gridDim.x * blockDim.x)
        p.y[int64_t(r) * n + i] = activate(p.activation, p.gate.row(r)[i]) * p.up.row(r)[i];
}
void add_glu_rows(Lowering& l, const Tensor& gate, const Tensor& up, float* y, Activation activation) {
    l.add(glu_rows, dim3((gate.cols() + 255) / 256, gate.rows()), dim3(256), 0, {gate, up, y, activation},
          "glu");
}

}  // namespace sparkinfer::cuda
