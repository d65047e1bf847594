#include "cuda/moe_slab.h"

#include <algorithm>

#include "cuda/linear_slab.h"
#include "cuda/moe_slab.cuh"

namespace sparkinfer::cuda {
namespace {

template <SlabKind F>
bool launch_glu(Lowering& l, MoeGluSlab p) {
    constexpr int kItem = SlabOf<F>::item;
    const ActivationLayout<slab_mask(F), 2> at{p.columns};
    const int rows = p.op.x.rows(),
              fixed = rows * at.bytes() + kSlabWarps * 2 * 32 * 4 + kMaxStages * 16 + 4096;
    const DeviceInfo& d = l.device();
    const int room = std::min(d.shared_block, d.shared_sm / 2 - 1024) - fixed;
    p.warps = 0;
    for (int warps : {8, 4, 2, 16}) {
        const int steps = (p.items + warps - 1) / warps, groups = kSlabWarps / warps;
        const int stages = std::min(room / (warps * kItem), kMaxStages);
        if (p.items % warps || stages < std::max(2, (groups - 1) * steps + 1)) continue;
        p.warps = warps;
        p.stages = stages;
        break;
    }
    if (!p.warps) return false;
    const int slabs = rows * p.op.router.top_k * p.slabs, grid = std::min(slabs, d.sms);
    const int work = (slabs + grid - 1) / grid * ((p.items + p.warps - 1) / p.warps);
    p.stages = std::min(p.stages,
                        std::max(work, (kSlabWarps / p.warps - 1) * ((p.items + p.warps - 1) / p.warps) + 1));
    l.add(moe_glu_slab<F>, dim3(grid), dim3(kSlabThreads), uint32_t(fixed + p.stages * p.warps * kItem), p,
          "slab");
    return true;
}

template <SlabKind F, SlabKind S>
bool launch_down_with(Lowering& l, const MoeDownSlab& p) {
    const MoeDownAdd& o = p.op;
    const int k = o.router.top_k, warps = std::min(kDownWarps, k * p.items + p.shared_items);
    const ActivationLayout<slab_mask(F), 2> at{k * o.h.shape[2]};
    const ActivationLayout<slab_mask(S), 2> shared_at{p.shared_items * kSlabColumns};
    const int shared = k * p.items * SlabOf<F>::item + p.shared_items * SlabOf<S>::item + at.bytes() +
                       shared_at.bytes() + kDownWarps * 128 + 256;
    if (shared > l.device().shared_block) return false;
    const dim3 grid(p.slabs, o.x.rows());
    if (warps <= 18)
        l.add(moe_down_slab<F, S, 18>, grid, dim3(warps * 32), uint32_t(shared), p, "slab");
    else
        l.add(moe_down_slab<F, S, kDownWarps>, grid, dim3(warps * 32), uint32_t(shared), p, "slab");
    return true;
}

template <SlabKind F>
bool launch_down(Lowering& l, const MoeDownSlab& p, bool same) {
    return same ? launch_down_with<F, F>(l, p) : launch_down_with<F, SlabKind::q8>(l, p);
}

// With a bias the order is that of sigmoid scores plus bias; softmax with a bias has no form here.
bool routable(const Router& r, int32_t experts) {
    return r.top_k <= 16 && experts <= kMostExperts && (!r.bias.data || r.scoring == Scoring::sigmoid);
}

}  // namespace

bool lower_slab(Lowering& l, const MoeGlu& op) {
    if (op.x.rows() > 8 || op.gate.pairing != Pairing::gate || op.gate.in % kSlabColumns ||
        !routable(op.router, op.gate.experts))
        return false;
    MoeGluSlab p{};
    p.op = op;
    p.data = static_cast<const std::byte*>(op.gate.data);
    p.factor = op.gate.scale;
    p.columns = op.gate.in;
    p.items = op.gate.in / kSlabColumns;
    p.slabs = op.gate.out / 8;
    p.experts = op.gate.experts;
    switch (slab_kind(op.gate.quant)) {
        case SlabKind::k4: return launch_glu<SlabKind::k4>(l, p);
        case SlabKind::k5: return launch_glu<SlabKind::k5>(l, p);
        case SlabKind::k6: return launch_glu<SlabKind::k6>(l, p);
        case SlabKind::q8: return launch_glu<SlabKind::q8>(l, p);
        case SlabKind::q4_0: return launch_glu<SlabKind::q4_0>(l, p);
        case SlabKind::q4_1: return launch_glu<SlabKind::q4_1>(l, p);
        case SlabKind::iq4_xs: return launch_glu<SlabKind::iq4_xs>(l, p);
        case SlabKind::mxfp4: return launch_glu<SlabKind::mxfp4>(l, p);
    }
    return false;
}

bool lower_slab(Lowering& l, const MoeDownAdd& op) {
    const bool shared = op.shared_down.data;
    if (op.x.rows() > 8 || !is_slab(op.down.quant) || op.down.in % kSlabColumns ||
        !routable(op.router, op.down.experts))
        return false;
    if (shared && op.shared_down.quant != Quant::q8_0_slab && op.shared_down.quant != op.down.quant)
        return false;
    if (shared && op.shared_down.in % kSlabColumns) return false;
    MoeDownSlab p{};
    p.op = op;
    p.data = static_cast<const std::byte*>(op.down.data);
    p.factor = op.down.scale;
    p.experts = op.down.experts;
    p.slabs = op.down.out / kSlabRows;
    p.items = op.down.in / kSlabColumns;
    if (shared) {
        p.shared_data = static_cast<const std::byte*>(op.shared_down.data);
        p.shared_factor = op.shared_down.scale;
        p.shared_items = op.shared_down.in / kSlabColumns;
    }
    const bool same = shared && op.shared_down.quant == op.down.quant;
    switch (slab_kind(op.down.quant)) {
        case SlabKind::k4: return launch_down<SlabKind::k4>(l, p, same);
        case SlabKind::k5: return launch_down<SlabKind::k5>(l, p, same);
        case SlabKind::k6: return launch_down<SlabKind::k6>(l, p, same);
        case SlabKind::q8: return launch_down<SlabKind::q8>(l, p, true);
        case SlabKind::q4_0: return launch_down<SlabKind::q4_0>(l, p, same);
        case SlabKind::q4_1: return launch_down<SlabKind::q4_1>(l, p, same);
        case SlabKind::iq4_xs: return launch_down<SlabKind::iq4_xs>(l, p, same);
        case SlabKind::mxfp4: return launch_down<SlabKind::mxfp4>(l, p, same);
    }
    return false;
}

}  // namespace sparkinfer::cuda
