#include "cuda/linear_dense.cuh"

#include <algorithm>

namespace sparkinfer::cuda {
namespace {

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

template <Quant kQuant>
void launch(Lowering& l, const LinearDense& p) {
    const unsigned blocks = unsigned((int64_t(p.tiles) * p.split + kDenseWarps - 1) / kDenseWarps);
    const dim3 block(kDenseWarps * 32);
    if (p.of.experts || p.of.rows == 1)
        l.add(linear_dense<kQuant, 1>, dim3(blocks, unsigned(p.of.rows)), block, 0, p, "dense");
    else
        l.add(linear_dense<kQuant, 4>, dim3(blocks, unsigned(p.of.rows + 3) / 4), block, 0, p, "dense");
}

}  // namespace

bool add_linear_dense(Lowering& l, std::span<const GenericLinear> parts) {
    const GenericLinear& first = parts[0];
    const Quant quant = first.w.quant;
    if (quant != Quant::f32 && quant != Quant::f16 && quant != Quant::bf16) return false;
    LinearDense p{first, {}, int32_t(parts.size()), 0, first.w.in, 1};
    if (p.columns % 8 || first.x_stride % 4 || first.inner_stride % 4 || !aligned(first.x)) return false;
    for (size_t i = 0; i < parts.size(); ++i) {
        const Weight& w = parts[i].w;
        if (w.quant != quant || !aligned(w.data)) return false;
        const int32_t tiles = (w.out + kDenseTile - 1) / kDenseTile;
        p.part[i] = {static_cast<const std::byte*>(w.data), w.scale, parts[i].y, parts[i].y_stride,
                     w.expert_rows ? w.expert_rows : w.out, w.out,   tiles,      w.scale_count};
        p.tiles += tiles;
    }
    // 12 warps a multiprocessor, 4 KB each on the way, keep its share of the memory busy. Rows of x do not
    // count: their number must not change the order of a sum.
    const int runs = (p.columns + kDenseRun - 1) / kDenseRun;
    const int at_once = std::max(first.rows_per_x, first.inner);  // experts of a row
    while (p.split < kDenseWarps && p.split < runs && p.tiles * at_once * p.split < 12 * l.device().sms)
        p.split *= 2;
    if (quant == Quant::f32) launch<Quant::f32>(l, p);
    if (quant == Quant::f16) launch<Quant::f16>(l, p);
    if (quant == Quant::bf16) launch<Quant::bf16>(l, p);
    return true;
}

}  // namespace sparkinfer::cuda
