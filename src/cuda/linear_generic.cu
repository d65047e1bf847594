#include "cuda/linear_generic.cuh"
#include "cuda/linear_slab.h"
#include "cuda/many_rows.h"
#include "cuda/matrix_planes.h"

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

// Packs the rows that `parts` share as `rows` says. A float32 matrix of one row takes no tiles of its own.
static void add_linears_packed(Lowering& l, PlaneRows rows, std::span<const GenericLinear> parts) {
    PlanesPart part[kMaxParts];
    size_t count = 0;
    for (const GenericLinear& p : parts) {
        const bool one = p.w.out == 1 && p.w.quant == Quant::f32 && p.w.scale_count == 0 && !p.add;
        if (one && parts.size() > 1 && !rows.dot && takes_dot(rows))
            rows.dot = static_cast<const float*>(p.w.data), rows.dot_y = p.y, rows.dot_stride = p.y_stride;
        else
            part[count++] = {p.w, p.y, p.y_stride};
    }
    add_linear_planes(l, add_pack_planes(l, rows), rows.rows, {part, count}, parts[0].add);
}

void add_linears_generic(Lowering& l, std::span<const GenericLinear> parts) {
    const GenericLinear& f = parts[0];
    if (f.rows > kFewRows && !f.experts)
        return add_linears_packed(l, {f.x, f.x_stride, f.rows, f.w.in}, parts);
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

void add_normed_linears(Lowering& l, const PlaneRows& rows, std::span<GenericLinear> parts) {
    if (rows.rows > kFewRows) return add_linears_packed(l, rows, parts);
    float* n = l.scratch<float>(int64_t(rows.rows) * rows.columns);  // [T, D]
    add_rms_norm(l, rows.rows, {rows.x, rows.x_stride, rows.norm, n, rows.columns, rows.eps, rows.gather});
    for (GenericLinear& part : parts) part.x = n, part.x_stride = rows.columns;
    add_linears_generic(l, parts);
}

// Rows of x with their norm.
static PlaneRows normed_rows(const Tensor& x, const Weight& norm, float eps) {
    return {static_cast<const float*>(x.data),    x.stride, x.rows(), int32_t(x.cols()),
            static_cast<const float*>(norm.data), eps};
}

void lower(Lowering& l, const NormLinear& op) {
    if (lower_slab(l, op) || lower_many(l, op)) return;
    GenericLinear part[kMaxParts];
    for (int32_t i = 0; i < op.parts; ++i)
        part[i] = {
            nullptr, static_cast<float*>(op.y[i].data), 0, op.y[i].stride, op.w[i], nullptr, op.x.rows(), 1,
            false};
    add_normed_linears(l, normed_rows(op.x, op.norm, op.eps), {part, size_t(op.parts)});
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
    const int32_t rows = op.x.rows(), ffn = op.gate.out;
    float* gate = l.scratch<float>(int64_t(rows) * ffn);
    float* up = l.scratch<float>(int64_t(rows) * ffn);
    GenericLinear both[] = {{nullptr, gate, 0, ffn, op.gate, nullptr, rows, 1, false},
                            {nullptr, up, 0, ffn, op.up, nullptr, rows, 1, false}};
    add_normed_linears(l, normed_rows(op.x, op.norm, op.eps), both);
    l.add(glu, dim3((ffn + 255) / 256, rows), dim3(256), 0, {gate, up, op.y, op.activation}, "glu");
}

}  // namespace sparkinfer::cuda
