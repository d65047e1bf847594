#include "cuda/linear_slab.h"

#include <algorithm>
#include <bit>

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
                             w.scale,
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
template <int kMask, int C, bool kOne>
bool launch_short(Lowering& l, SlabLinear p) {
    const int items = p.columns / kSlabColumns, slab = items * largest_item<kMask>();
    p.warps = std::min(items, kSlabWarps);
    p.groups = kSlabWarps / p.warps;
    share_blocks(p, l.device().sms);
    const int work = p.slabs ? (p.slabs + p.slab_blocks - 1) / p.slab_blocks : 0,
              each = (work + p.groups - 1) / p.groups;
    p.batch = std::min(each, C == 2 ? 4 : 2);
    p.ring_at = int(sizeof(SlabShared<C>)) + (C / 2 + (p.norm ? 1 : 0)) * p.columns * 4 +
                p.groups * (each > p.batch ? 2 : 1) * p.batch * red_floats<C>(p.warps) * 4;
    p.ring_at = (p.ring_at + 127) / 128 * 128;
    p.stages = 0;
    if (p.slabs) {
        const auto fit = [&](bool whole) {
            p.stages =
                std::min({(ring_room(l, whole) - p.ring_at) / slab, kMaxStages, std::max(work, p.groups)});
            return p.stages >= std::min(work, std::max(2, p.groups + 1));
        };
        if (!fit(C == 8) && !fit(true)) return false;
    }
    p.inverse = 65535 / p.warps + 1, p.stage_bytes = slab, p.steps = 1;
    launch_grid(l, linear_slab<kMask, C, kOne>, p, p.ring_at + p.stages * slab, "slab");
    return true;
}

// Warps of a slab, for the least idle time of those that leave room for a ring at all. They set the order of
// a sum, so rows do not matter here.
int warps_of_long(const SlabLinear& p, int item, int room) {
    const int items = p.columns / kSlabColumns;
    double best = 0;
    int chosen = 0;
    for (int warps : {8, 4, 2}) {
        const int steps = (items + warps - 1) / warps, groups = kSlabWarps / warps;
        if (room / (warps * item) < (groups - 1) * steps + 1) continue;
        const double busy = double(items) / (steps * warps);
        if (busy > best + 0.02) best = busy, chosen = warps;
    }
    return chosen;
}

template <int kMask, int C>
bool launch_long(Lowering& l, SlabLinear p) {
    constexpr int item = largest_item<kMask>();
    const auto fixed_for = [&](auto layout, int bytes) { return bytes + (layout.bytes() + 127) / 128 * 128; };
    const int one_row = fixed_for(ActivationLayout<kMask, 2>{p.columns}, int(sizeof(LongShared<2>)));
    const int fixed = fixed_for(ActivationLayout<kMask, C>{p.columns}, int(sizeof(LongShared<C>)));
    share_blocks(p, l.device().sms);
    p.warps = p.slabs ? warps_of_long(p, item, ring_room(l, true) - one_row) : kSlabWarps;
    if (!p.warps) return false;
    p.groups = kSlabWarps / p.warps;
    p.steps = (p.columns / kSlabColumns + p.warps - 1) / p.warps;
    p.stages = 0;
    if (p.slabs) {
        const int work = (p.slabs + p.slab_blocks - 1) / p.slab_blocks * p.steps,
                  least = (p.groups - 1) * p.steps + 1;
        const auto fit = [&](bool whole, int wanted) {
            p.stages = std::min(
                {(ring_room(l, whole) - fixed) / (p.warps * item), kMaxStages, std::max(work, least)});
            return p.stages >= wanted;
        };
        // A long row needs the whole multiprocessor to have more than one step under way.
        if ((C == 8 || !fit(false, std::max(least, std::min(work, 3)))) && !fit(true, least)) return false;
    }
    p.inverse = 65535 / p.warps + 1, p.stage_bytes = p.warps * item;
    launch_grid(l, linear_slab_long<kMask, C>, p, fixed + p.stages * p.warps * item, "slab, long rows");
    return true;
}

template <int kMask, int C>
bool launch(Lowering& l, const SlabLinear& p) {
    constexpr int kFormats = std::popcount(unsigned(kMask));
    if constexpr (kMask == kMaskAll && C == 8) {
        return false;  // a rare mixture: rows one by one
    } else {
        const int items = p.columns / kSlabColumns;
        const bool fits = items <= kSlabWarps,
                   one = items <= 2 * kSlabWarps && p.slabs <= l.device().sms && !p.denses;
        if constexpr (kFormats > 3 && C == 8) {
            if (fits || one) return false;  // decoders and four rows do not fit the registers: one by one
        } else {
            if (fits) return launch_short<kMask, C, false>(l, p);
            if (one) return launch_short<kMask, C, true>(l, p);
        }
        return launch_long<kMask, C>(l, p);
    }
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

// Four rows at a time, or, where so many do not fit, one.
template <int kMask>
bool launch_rows(Lowering& l, const SlabLinear& p) {
    for (int first = 0; first < p.rows;) {
        int count = std::min(4, p.rows - first);
        if (count == 1 || !launch<kMask, 8>(l, rows_of_op(p, first, count))) {
            if (!launch<kMask, 2>(l, rows_of_op(p, first, 1))) return false;
            count = 1;
        }
        first += count;
    }
    return true;
}

bool launch_any(Lowering& l, const SlabLinear& p) {
    if (p.rows > 8 || p.columns % kSlabColumns || p.columns > kMostItems * kSlabColumns) return false;
    int mask = 0;
    for (int i = 0; i < p.parts; ++i) mask |= slab_mask(p.part[i].kind);
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
    SlabLinear p = base_of(op.x, &op.norm, op.eps);
    for (int32_t i = 0; i < op.parts; ++i)
        if (!add_part(p, op.w[i], static_cast<float*>(op.y[i].data), op.y[i].stride)) return false;
    return launch_any(l, p);
}

bool lower_slab(Lowering& l, const LinearAdd& op) {
    SlabLinear p = base_of(op.x, nullptr, 0);
    p.mode = SlabMode::add;
    if (!is_slab(op.w.quant) || !add_part(p, op.w, static_cast<float*>(op.y.data), op.y.stride)) return false;
    return launch_any(l, p);
}

bool lower_slab(Lowering& l, const LinearGlu& op) {
    SlabLinear p = base_of(op.x, &op.norm, op.eps);
    p.mode = SlabMode::glu;
    if (op.gate.pairing != Pairing::gate ||
        !add_part(p, op.gate, static_cast<float*>(op.y.data), op.y.stride))
        return false;
    return launch_any(l, p);
}

bool lower_slab_head(Lowering& l, const Output& op, const Tensor& to) {
    SlabLinear p = base_of(op.x, &op.norm, op.eps);
    p.rows = to.rows();
    p.step = op.step;
    p.gather_first = 0;
    if (!is_slab(op.head.quant) || !add_part(p, op.head, static_cast<float*>(to.data), to.stride))
        return false;
    return launch_any(l, p);
}

}  // namespace sparkinfer::cuda
