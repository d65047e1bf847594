#include "cuda/many_rows.h"

#include "cuda/linear_generic.cuh"
#include "cuda/matrix_planes.h"
#include "cuda/slab_gemm.h"

namespace sparkinfer::cuda {

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
    add_slab_gemm(l, pack_rows(l, normed_rows_of(op.x, op.norm, op.eps)), rows, slabs, SlabMode::store);
    if (others.empty()) return true;
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
    add_slab_gemm(l, pack_rows(l, normed_rows_of(op.x, op.norm, op.eps)), op.x.rows(), {&product, 1}, SlabMode::glu);
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
