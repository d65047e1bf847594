#include "cuda/many_rows.h"

#include "cuda/linear_generic.cuh"
#include "cuda/matrix_planes.h"
#include "cuda/slab_gemm.h"

namespace sparkinfer::cuda {

// Matrices of plain floats beside slabs, of a router above all: for a batch of decoding the kernel for few
// rows, which has a warp everywhere, where tiles of a small matrix would keep a few multiprocessors busy.
static bool add_small_dense(Lowering& l, const NormLinear& op, std::span<GenericLinear> parts) {
    constexpr int32_t kRows = 64, kWeights = 1 << 20;
    const int32_t rows = op.x.rows(), width = int32_t(op.x.cols());
    if (rows > kRows) return false;
    for (const GenericLinear& part : parts) {
        const bool plain =
            part.w.quant == Quant::f32 || part.w.quant == Quant::f16 || part.w.quant == Quant::bf16;
        if (!plain || int64_t(part.w.out) * width > kWeights || width % 8) return false;
    }
    float* n = l.scratch<float>(int64_t(rows) * width);
    add_rms_norm(l, rows,
                 {static_cast<const float*>(op.x.data), op.x.stride, static_cast<const float*>(op.norm.data),
                  n, width, op.eps, nullptr});
    for (GenericLinear& part : parts) part.x = n, part.x_stride = width;
    if (!add_linear_dense(l, parts)) add_linears_generic(l, parts);
    return true;
}

bool lower_many(Lowering& l, const NormLinear& op) {
    const int32_t rows = op.x.rows(), width = int32_t(op.x.cols());
    std::vector<Product> slabs;
    std::vector<GenericLinear> others;
    for (int32_t i = 0; i < op.parts; ++i) {
        float* y = static_cast<float*>(op.y[i].data);
        if (has_slab_gemm(op.w[i]))
            slabs.push_back({op.w[i], y, op.y[i].stride});
        else
            others.push_back({nullptr, y, 0, op.y[i].stride, op.w[i], nullptr, rows, 1, false});
    }
    if (rows <= kFewRows || slabs.empty()) return false;
    const PackedRows packed = pack_rows(l, normed_rows_of(op.x, op.norm, op.eps));
    if (rows >= kManyRows && !others.empty())  // a router: its experts want them next
        l.keep(op.norm.data, NormedRows{packed, op.x.data});
    add_slab_gemm(l, packed, rows, slabs, SlabMode::store);
    if (others.empty() || add_small_dense(l, op, others)) return true;
    add_normed_linears(l,
                       {static_cast<const float*>(op.x.data), op.x.stride, rows, width,
                        static_cast<const float*>(op.norm.data), op.eps},
                       others);
    return true;
}

bool lower_many(Lowering& l, const LinearAdd& op) {
    if (op.x.rows() <= kFewRows || !has_slab_gemm(op.w)) return false;
    const Product product{op.w, static_cast<float*>(op.y.data), op.y.stride};
    add_slab_gemm(l, pack_rows(l, rows_of(op.x)), op.x.rows(), {&product, 1}, SlabMode::add);
    return true;
}

bool lower_many(Lowering& l, const LinearGlu& op) {
    if (op.x.rows() <= kFewRows || op.gate.pairing != Pairing::gate || !has_slab_gemm(op.gate)) return false;
    const Product product{op.gate, static_cast<float*>(op.y.data), op.y.stride};
    add_slab_gemm(l, pack_rows(l, normed_rows_of(op.x, op.norm, op.eps)), op.x.rows(), {&product, 1},
                  SlabMode::glu);
    return true;
}

bool lower_many_head(Lowering& l, const Output& op, const Tensor& to, const int32_t* source) {
    if (to.rows() <= kFewRows || !has_slab_gemm(op.head)) return false;
    RowSource x = normed_rows_of(op.x, op.norm, op.eps);
    x.rows = to.rows();
    x.gather = source;
    const Product product{op.head, static_cast<float*>(to.data), to.stride};
    add_slab_gemm(l, pack_rows(l, x), to.rows(), {&product, 1}, SlabMode::store);
    return true;
}

}  // namespace sparkinfer::cuda
