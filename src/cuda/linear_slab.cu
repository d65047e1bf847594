#include "cuda/linear_slab.h"

#include <algorithm>

#include "cuda/linear_slab.cuh"

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
        const int32_t slabs = w.out / (w.pairing == Pairing::none ? 16 : 8);
        p.part[p.parts++] = {
            static_cast<const std::byte*>(w.data), w.scale, y, stride, slabs, slab_kind(w.quant)};
        p.slabs += slabs;
        return true;
    }
    if (!is_plain(w)) return false;
    p.dense[p.denses++] = {w.data, y, stride, w.out, w.quant};
    p.dense_rows += w.out;
    return true;
}

// Warps a slab and stages that fit `room` bytes of ring, for the least idle time; false when nothing fits.
bool choose_shape(SlabLinear& p, int item, int room) {
    const int items = p.columns / kSlabColumns;
    double best = 0;
    for (int warps : {16, 8, 4, 2}) {
        const int steps = (items + warps - 1) / warps, groups = kSlabWarps / warps, stage = warps * item;
        const int stages = std::min(room / stage, kMaxStages), needed = (groups - 1) * steps + 1;
        if (stages < needed) continue;
        const double busy = double(items) / (steps * warps);
        if (busy > best + 0.02) best = busy, p.warps = warps, p.stages = stages;
    }
    return best > 0;
}

template <int kMask, int C>
bool launch(Lowering& l, SlabLinear p) {
    const DeviceInfo& d = l.device();
    constexpr int item = largest_item<kMask>();
    p.stages = 0;
    // One block a multiprocessor and half its shared memory: the successor's blocks then start beside it and
    // load ahead.
    const int room = std::min(d.shared_block, C == 2 ? d.shared_sm / 2 - 1024 : d.shared_sm - 1024);
    const int fixed = SlabShared<kMask, C>::bytes(p, item);
    if (p.slabs && !(choose_shape(p, item, room - fixed) && (p.stages >= 3 || p.slabs <= d.sms)) &&
        !choose_shape(p, item, std::min(d.shared_block, d.shared_sm - 1024) - fixed))
        return false;  // a long row needs the whole multiprocessor to have more than one step under way
    const int dense_blocks = (p.dense_rows + kDenseRows - 1) / kDenseRows;
    // The ring never needs more stages than a block has work.
    const int most = std::max(1, d.sms - dense_blocks);
    p.slab_blocks = std::min(p.slabs, most);
    if (p.slabs) {
        const int items = p.columns / kSlabColumns, steps = (items + p.warps - 1) / p.warps;
        const int work = (p.slabs + p.slab_blocks - 1) / p.slab_blocks * steps, groups = kSlabWarps / p.warps;
        p.stages = std::min(p.stages, std::max(work, (groups - 1) * steps + 1));
    } else {
        p.warps = 16;
    }
    const int dense = p.denses ? C / 2 * p.columns * 4 + fixed : 0;  // dense blocks keep x as floats
    const int shared = std::max(fixed + p.stages * p.warps * item, dense);
    if (shared > d.shared_block) return false;
    l.add(linear_slab<kMask, C>, dim3(std::max(p.slab_blocks, p.slabs ? 1 : 0) + dense_blocks),
          dim3(kSlabThreads), uint32_t(shared), p, "slab");
    return true;
}

template <int kMask>
bool launch_rows(Lowering& l, const SlabLinear& p) {
    if (p.rows == 1) return launch<kMask, 2>(l, p);
    for (int first = 0; first < p.rows; first += 4) {
        SlabLinear four = p;
        four.rows = std::min(4, p.rows - first);
        if (p.gather_first >= 0)
            four.gather_first += first;
        else
            four.x += first * p.x_stride;
        for (int i = 0; i < p.parts; ++i) four.part[i].y += first * p.part[i].y_stride;
        for (int i = 0; i < p.denses; ++i) four.dense[i].y += first * p.dense[i].y_stride;
        if (!launch<kMask, 8>(l, four)) return false;
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
    p.mode = SlabMode::store;
    p.gather_first = -1;
    return p;
}

}  // namespace

bool lower_slab(Lowering& l, const NormLinear& op) {
    SlabLinear p = base_of(op.x, &op.norm, op.eps);
    p.late_trigger = l.before(OpCode::moe_glu);  // which then reads x before its wait
    for (int32_t i = 0; i < op.parts; ++i)
        if (!add_part(p, op.w[i], static_cast<float*>(op.y[i].data), op.y[i].stride)) return false;
    return p.parts > 0 && launch_any(l, p);
}

bool lower_slab(Lowering& l, const LinearAdd& op) {
    SlabLinear p = base_of(op.x, nullptr, 0);
    p.mode = SlabMode::add;
    p.late_trigger = true;  // 2 % of a token: its successor's copies would get in the way of its own
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
