#include "cuda/linear_slab.h"

#include <algorithm>
#include <bit>
#include <span>
#include <vector>

#include "cuda/linear_slab_long.cuh"

namespace sparkinfer::cuda {

bool is_slab(Quant q) {
    return q == Quant::q4_k_slab || q == Quant::q5_k_slab || q == Quant::q6_k_slab || q == Quant::q8_0_slab ||
           q == Quant::q4_0_slab || q == Quant::q4_1_slab || q == Quant::iq4_xs_slab ||
           q == Quant::mxfp4_slab;
}

namespace {

bool is_plain(const Weight& w) {
    return (w.quant == Quant::f32 || w.quant == Quant::f16 || w.quant == Quant::bf16) && w.scale_count == 0 &&
           w.experts == 1;
}

// Collects parts; false when one suits neither form.
bool add_part(SlabLinear& p, const Weight& w, float* y, int64_t stride) {
    if (is_slab(w.quant) && w.experts == 1) {
        const int32_t rows = w.pairing == Pairing::none ? 16 : 8;
        const int64_t slab = kSlabRows * row_bytes(w);
        p.part[p.parts++] = {static_cast<const std::byte*>(w.data) - p.slabs * slab,
                             y - p.slabs * rows,
                             reinterpret_cast<const float2*>(w.scale),
                             stride,
                             p.slabs,
                             slab_kind(w.quant)};
        p.slabs += w.out / rows;
        return true;
    }
    if (!is_plain(w)) return false;
    p.dense[p.denses++] = {w.data, y, stride, w.out, w.quant};
    p.dense_rows += w.out;
    return true;
}

// A successor's blocks start beside this kernel's and load ahead, so each may have about half of a
// multiprocessor's shared memory; four rows take the registers of a whole one.
int ring_room(const Lowering& l, bool whole) {
    const DeviceInfo& d = l.device();
    return whole ? std::min(d.shared_block, d.shared_sm - 1024) : l.shared_room();
}

// A block per multiprocessor: those of a kernel then lie evenly, and so do its successor's.
template <class Kernel>
void launch_grid(Lowering& l, Kernel kernel, SlabLinear& p, int shared, const char* variant) {
    l.add(kernel, dim3(std::max(l.device().sms, p.slab_blocks + p.dense_blocks)), dim3(kSlabThreads),
          uint32_t(shared), p, variant);
}

void share_blocks(SlabLinear& p, int sms) {
    p.dense_blocks = (p.dense_rows + kDenseRows - 1) / kDenseRows;
    p.slab_blocks = std::min(p.slabs, std::max(1, sms - p.dense_blocks % sms));
    if (!p.slabs) return;
    p.each = p.slabs / p.slab_blocks;
    p.more = p.slabs % p.slab_blocks;
}

// A slab is a step of the ring.
template <int kMask, bool kOne>
bool launch_short(Lowering& l, SlabLinear p) {
    const int items = p.columns / kSlabColumns, slab = items * largest_item<kMask>();
    p.warps = std::min(items, kSlabWarps);
    p.groups = kOne ? 1 : kSlabWarps / p.warps;
    share_blocks(p, l.device().sms);
    const int work = p.slabs ? (p.slabs + p.slab_blocks - 1) / p.slab_blocks : 0,
              each = (work + p.groups - 1) / p.groups;
    p.batch = std::min(each, 4);
    p.ring_at = int(sizeof(SlabShared)) + (p.norm ? 2 : 1) * p.columns * 4 +
                p.groups * (kOne || each > p.batch ? 2 : 1) * p.batch * red_floats(1, p.warps) * 4;
    p.ring_at = (p.ring_at + 127) / 128 * 128;
    p.stages = 0;
    if (p.slabs) {
        const auto fit = [&](bool whole) {
            p.stages =
                std::min({(ring_room(l, whole) - p.ring_at) / slab, kMaxStages, std::max(work, p.groups)});
            return p.stages >= std::min(work, std::max(2, p.groups + 1));
        };
        if (!fit(false) && !fit(true)) return false;
    }
    p.inverse = 65535 / p.warps + 1, p.stage_bytes = slab;
    launch_grid(l, linear_slab<kMask, kOne>, p, p.ring_at + p.stages * slab, "slab");
    return true;
}

// K ≤ 4096 and a slab a block at most.
bool is_short_of_slabs(const Lowering& l, const SlabLinear& p) {
    return p.columns <= 2 * kSlabWarps * kSlabColumns && p.slabs <= l.device().sms && !p.denses;
}
// Two blocks share each slab where that leaves fewer of them idle. They set the order of a sum, so rows do
// not matter here.
bool splits_rows(const Lowering& l, const SlabLinear& p) {
    if (p.norm || p.denses || p.columns < 16 * kSlabColumns || is_short_of_slabs(l, p)) return false;
    const int sms = l.device().sms, whole = (p.slabs + sms - 1) / sms,
              halves = (p.slabs + sms / 2 - 1) / (sms / 2);
    return 0.55 * halves < whole;
}

// Items of a pass: few passes, alike, and whole fours of items, as add_up wants them.
int pass_items(int items) {
    const int passes = (items + kLongWarps - 1) / kLongWarps;
    return std::min(items, ((items + passes - 1) / passes + 3) / 4 * 4);
}
// A plan with passes of so many items; false: there is no room for two pieces.
template <int kMask, int kTokens, int kBlocks>
bool plan_long(const Lowering& l, SlabLinear& p, int items, int room) {
    constexpr int kMostRoundFloats = 4096;
    p.warps = items;
    p.passes = (p.range_items + p.warps - 1) / p.warps;
    share_blocks(p, l.device().sms / kBlocks);
    const int count = p.each + (p.more > 0), pieces = count * p.passes;
    p.round = std::clamp(count, 1, kMostRoundFloats / (kTokens * 16));
    p.batch = std::clamp(count, 1, 2);
    if (kBlocks > 1 && count > p.round) return false;
    p.ring_at = int(sizeof(LongShared<kTokens>)) +
                4 * (long_row_floats<kTokens>(p) + kBlocks * p.round * kTokens * 16 +
                     2 * p.batch * red_floats(kTokens, kLongWarps));
    p.ring_at = (p.ring_at + 127) / 128 * 128;
    p.stage_bytes = p.warps * largest_item<kMask>();
    p.stages = std::min({(room - p.ring_at) / p.stage_bytes, kMaxStages, pieces});
    return !p.slabs || p.stages >= std::min(2, pieces);
}
template <int kMask, int kTokens, int kBlocks>
bool launch_long_with(Lowering& l, SlabLinear p) {
    p.range_items = (p.columns / kSlabColumns + kBlocks - 1) / kBlocks;
    int items =
        pass_items(p.range_items);  // fewer where shared memory is small: sums go by fours all the same
    while (items > 0 && !plan_long<kMask, kTokens, kBlocks>(l, p, items, ring_room(l, true)))
        items = (items - 1) / 4 * 4;
    if (items == 0) return false;
    const int blocks = std::max(l.device().sms / kBlocks, p.slab_blocks + p.dense_blocks) * kBlocks;
    l.add(linear_slab_long<kMask, kTokens, kBlocks>, dim3(blocks), dim3(kLongThreads),
          uint32_t(p.ring_at + p.stages * p.stage_bytes), p, "slab, passes");
    return true;
}
template <int kMask, int kTokens>
bool launch_long(Lowering& l, const SlabLinear& p) {
    return splits_rows(l, p) ? launch_long_with<kMask, kTokens, 2>(l, p)
                             : launch_long_with<kMask, kTokens, 1>(l, p);
}
template <int kMask>
bool launch_row(Lowering& l, const SlabLinear& p) {
    if (p.columns <= kSlabWarps * kSlabColumns) return launch_short<kMask, false>(l, p);
    return is_short_of_slabs(l, p) ? launch_short<kMask, true>(l, p) : launch_long<kMask, 1>(l, p);
}

// Rows first … first + count of the op.
SlabLinear rows_of_op(const SlabLinear& p, int first, int count) {
    SlabLinear some = p;
    some.rows = count;
    if (p.gather_first >= 0)
        some.gather_first += first;
    else
        some.x += first * p.x_stride;
    for (int i = 0; i < p.parts; ++i) some.part[i].y += first * p.part[i].y_stride;
    for (int i = 0; i < p.denses; ++i) some.dense[i].y += first * p.dense[i].y_stride;
    return some;
}

// One row, or up to eight at once, or, where so many do not fit, one by one.
template <int kMask>
bool launch_rows(Lowering& l, const SlabLinear& p) {
    if (p.rows == 1) return launch_row<kMask>(l, p);
    if (p.rows <= kTileTokens ? launch_long<kMask, 4>(l, p) : launch_long<kMask, 8>(l, p)) return true;
    for (int first = 0; first < p.rows; ++first)
        if (!launch_row<kMask>(l, rows_of_op(p, first, 1))) return false;
    return true;
}

int mask_of(const SlabLinear& p) {
    int mask = 0;
    for (int i = 0; i < p.parts; ++i) mask |= slab_mask(p.part[i].kind);
    return mask;
}
bool launch_any(Lowering& l, const SlabLinear& p) {
    const int mask = mask_of(p);
    switch (mask) {
        case 0: return p.denses > 0 && launch_rows<kMask8>(l, p);
        case kMask4: return launch_rows<kMask4>(l, p);
        case kMask5: return launch_rows<kMask5>(l, p);
        case kMask6: return launch_rows<kMask6>(l, p);
        case kMask8: return launch_rows<kMask8>(l, p);
        case kMask4 | kMask6: return launch_rows < kMask4 | kMask6 > (l, p);
        case kMask4 | kMask5:
        case kMask5 | kMask6:
        case kMask4 | kMask5 | kMask6: return launch_rows < kMask4 | kMask5 | kMask6 > (l, p);
        case slab_mask(SlabKind::q4_0): return launch_rows<slab_mask(SlabKind::q4_0)>(l, p);
        case slab_mask(SlabKind::q4_1): return launch_rows<slab_mask(SlabKind::q4_1)>(l, p);
        case slab_mask(SlabKind::iq4_xs): return launch_rows<slab_mask(SlabKind::iq4_xs)>(l, p);
        case slab_mask(SlabKind::mxfp4): return launch_rows<slab_mask(SlabKind::mxfp4)>(l, p);
        default:
            if (mask & kMaskMore) return launch_rows<kMaskAll>(l, p);
            return launch_rows < kMask4 | kMask5 | kMask6 | kMask8 > (l, p);
    }
}

// Several rows as planes, for all blocks of the product.
void add_planes(Lowering& l, SlabLinear& p) {
    const int items = p.columns / kSlabColumns, tiles = p.rows > kTileTokens ? 2 : 1;
    SlabPlanes planes{p, l.scratch<uint4>(int64_t(items) * tiles * kPlanePiece),
                      l.scratch<float>(int64_t(p.rows) * kMostItems)};
    p.planes = planes.planes, p.squares = planes.squares;
    l.add(slab_planes, dim3(items, tiles), dim3(kTileTokens * 32), 0, planes, "planes");
}

// What an op multiplies by, and where the results go.
struct Source {
    const Weight& w;
    float* y;
    int64_t stride;
};
bool launch_all(Lowering& l, const SlabLinear& base, std::span<const Source> sources) {
    if (base.rows > 8 || base.columns % kSlabColumns || base.columns > kMostItems * kSlabColumns)
        return false;
    SlabLinear all = base;
    for (const Source& s : sources)
        if (!add_part(all, s.w, s.y, s.stride)) return false;
    if (base.rows > 1 && all.slabs) add_planes(l, all);
    return launch_any(l, all);
}

SlabLinear base_of(const Tensor& x, const Weight* norm, float eps) {
    SlabLinear p{};
    p.x = static_cast<const float*>(x.data);
    p.x_stride = x.stride;
    p.norm = norm ? static_cast<const float*>(norm->data) : nullptr;
    p.eps = eps;
    p.rows = x.rows();
    p.columns = int32_t(x.cols());
    p.inverse_columns = 1.0f / float(p.columns);
    p.mode = SlabMode::store;
    p.gather_first = -1;
    for (SlabPart& part : p.part) part.first = INT32_MAX;
    return p;
}

}  // namespace

bool lower_slab(Lowering& l, const NormLinear& op) {
    std::vector<Source> sources;
    for (int32_t i = 0; i < op.parts; ++i)
        sources.push_back({op.w[i], static_cast<float*>(op.y[i].data), op.y[i].stride});
    return launch_all(l, base_of(op.x, &op.norm, op.eps), sources);
}

bool lower_slab(Lowering& l, const LinearAdd& op) {
    SlabLinear p = base_of(op.x, nullptr, 0);
    p.mode = SlabMode::add;
    const Source source{op.w, static_cast<float*>(op.y.data), op.y.stride};
    return is_slab(op.w.quant) && launch_all(l, p, {&source, 1});
}

bool lower_slab(Lowering& l, const LinearGlu& op) {
    SlabLinear p = base_of(op.x, &op.norm, op.eps);
    p.mode = SlabMode::glu;
    const Source source{op.gate, static_cast<float*>(op.y.data), op.y.stride};
    return op.gate.pairing == Pairing::gate && launch_all(l, p, {&source, 1});
}

bool lower_slab_head(Lowering& l, const Output& op, const Tensor& to) {
    SlabLinear p = base_of(op.x, &op.norm, op.eps);
    p.rows = to.rows();
    p.step = op.step;
    p.gather_first = 0;
    const Source source{op.head, static_cast<float*>(to.data), to.stride};
    return is_slab(op.head.quant) && launch_all(l, p, {&source, 1});
}

}  // namespace sparkinfer::cuda
