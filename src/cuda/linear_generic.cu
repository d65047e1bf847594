#include "cuda/linear_generic.cuh"
#include "cuda/linear_slab.h"
#include "cuda/many_rows.h"

namespace sparkinfer::cuda {

// Kernel     rms_norm: 32 registers, 256 bytes
__global__ void __launch_bounds__(256) rms_norm(const RmsNorm p) {
    __shared__ double part[32];
    wait_for_predecessor();
    const float* x = p.x + (p.gather ? p.gather[blockIdx.x] : blockIdx.x) * p.x_stride;
    float* y = p.y + int64_t(blockIdx.x) * p.width;
    // In float64, as on the CPU: the square of a float does not always fit a float.
    double sum = 0;
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) sum += double(x[i]) * double(x[i]);
    const float scale = float(1.0 / sqrt(block_sum(sum, part) / double(p.width) + double(p.eps)));
    for (int i = threadIdx.x; i < p.width; i += blockDim.x) y[i] = x[i] * scale * p.norm[i];
}

void add_rms_norm(Lowering& l, int32_t rows, const RmsNorm& p) {
    l.add(rms_norm, dim3(rows), dim3(256), 0, p, "rms_norm");
}

void add_linears_generic(Lowering& l, std::span<const GenericLinear> parts) {
    if (add_linear_dense(l, parts)) return;
    for (const GenericLinear& p : parts) {
        if (parts.size() > 1 && add_linear_dense(l, {&p, 1})) continue;
        const unsigned tiles = p.experts ? p.rows : (p.rows + kGenericTile - 1) / kGenericTile;
        const dim3 grid((p.w.out + kGenericWarps - 1) / kGenericWarps, tiles);
        with_format(p.w.quant, [&](auto f) {
            l.add(linear_generic<decltype(f)>, grid, dim3(kGenericWarps * 32), 0, p, "generic");
        });
    }
}

void lower(Lowering& l, const NormLinear& op) {
    if (lower_slab(l, op) || lower_many(l, op)) return;
    const int32_t rows = op.x.rows(), width = int32_t(op.x.cols());
    float* n = l.scratch<float>(int64_t(rows) * width);  // [T, D]
    add_rms_norm(l, rows,
                 {static_cast<const float*>(op.x.data), op.x.stride, static_cast<const float*>(op.norm.data),
                  n, width, op.eps, nullptr});
    GenericLinear part[kMaxParts];
    for (int32_t i = 0; i < op.parts; ++i)
        part[i] = {n,    static_cast<float*>(op.y[i].data), width, op.y[i].stride, op.w[i], nullptr, rows, 1,
                   false};
    add_linears_generic(l, {part, size_t(op.parts)});
}

void lower(Lowering& l, const LinearAdd& op) {
    if (lower_slab(l, op) || lower_many(l, op)) return;
    add_linear_generic(l, {static_cast<const float*>(op.x.data), static_cast<float*>(op.y.data), op.x.stride,
                           op.y.stride, op.w, nullptr, op.x.rows(), 1, true});
}

struct Glu {
    const float* gate;  // [T, F] dense
    const float* up;
    Tensor y;  // [T, F]
    Activation activation;
};
// Kernel     glu: 24 registers
__global__ void __launch_bounds__(256) glu(const Glu p) {
    wait_for_predecessor();
    const int i = blockIdx.x * blockDim.x + threadIdx.x, r = blockIdx.y, width = int(p.y.cols());
    const int64_t at = int64_t(r) * width + i;
    if (i < width) p.y.row(r)[i] = activate(p.activation, p.gate[at]) * p.up[at];
}

void lower(Lowering& l, const LinearGlu& op) {
    if (lower_slab(l, op) || lower_many(l, op)) return;
    const int32_t rows = op.x.rows(), width = int32_t(op.x.cols()), ffn = op.gate.out;
    float* n = l.scratch<float>(int64_t(rows) * width);
    float* gate = l.scratch<float>(int64_t(rows) * ffn);
    float* up = l.scratch<float>(int64_t(rows) * ffn);
    add_rms_norm(l, rows,
                 {static_cast<const float*>(op.x.data), op.x.stride, static_cast<const float*>(op.norm.data),
                  n, width, op.eps, nullptr});
    const GenericLinear both[] = {{n, gate, width, ffn, op.gate, nullptr, rows, 1, false},
                                  {n, up, width, ffn, op.up, nullptr, rows, 1, false}};
    add_linears_generic(l, both);
    l.add(glu, dim3((ffn + 255) / 256, rows), dim3(256), 0, {gate, up, op.y, op.activation}, "glu");
}

}  // namespace sparkinfer::cuda
