#include "cuda/moe_slab.h"

#include <algorithm>

#include "cuda/linear_slab.h"
#include "cuda/moe_slab.cuh"

namespace sparkinfer::cuda {
namespace {

template <SlabKind F, int kItems, int kWarps>
bool launch_glu(Lowering& l, MoeGluSlab p) {
    const int slab = p.items * SlabOf<F>::item, work = p.op.x.rows() * p.op.router.top_k * p.slabs,
              grid = l.device().sms;
    p.warps = p.items / kItems;
    p.groups = std::min(8, kWarps / p.warps);
    p.each = work / grid, p.more = work % grid;
    const int most = p.each + (p.more > 0), each = (most + p.groups - 1) / p.groups;
    p.batch = std::min(each, 4);
    p.x_rows = std::min(p.op.x.rows(), 2);
    if (most > p.op.router.top_k * p.slabs) return false;
    p.ring_at = int(sizeof(GluShared<kWarps>)) + (p.x_rows + 1) * int(p.op.x.cols()) * 4 +
                p.groups * (each > p.batch ? 2 : 1) * p.batch * red_floats(1, p.warps) * 4;
    p.ring_at = (p.ring_at + 127) / 128 * 128;
    const auto fit = [&](int room) {
        p.stages = std::min({(room - p.ring_at) / slab, 32, std::max(most, p.groups)});
        return p.stages >= std::min(most, std::max(2, p.groups));
    };
    const int whole = std::min(l.device().shared_block, l.device().shared_sm - 1024);
    if ((kWarps == kGluWarpsMany || !fit(l.shared_room())) && !fit(whole)) return false;
    p.inverse = 65535 / p.warps + 1;
    l.add(moe_glu_slab<F, kItems, kWarps>, dim3(grid), dim3((kWarps + 1) * 32),
          uint32_t(p.ring_at + p.stages * slab), p, "slab");
    return true;
}
template <SlabKind F>
bool launch_glu(Lowering& l, const MoeGluSlab& p) {
    if (p.items <= kSlabWarps)
        return p.op.x.rows() == 1 ? launch_glu<F, 1, kGluWarpsOne>(l, p)
                                  : launch_glu<F, 1, kGluWarpsMany>(l, p);
    return p.items == 2 * kSlabWarps && launch_glu<F, 2, kGluWarpsOne>(l, p);
}

template <SlabKind F, SlabKind S>
bool launch_down_with(Lowering& l, const MoeDownSlab& p) {
    const MoeDownAdd& o = p.op;
    const int items = o.router.top_k * p.items,
              shared = int(sizeof(DownShared)) + items * (SlabOf<F>::item + kSlabColumns * 4) +
                       16 * red_stride(items) * 4 + p.shared_items * SlabOf<S>::item;
    if (shared > l.device().shared_block || p.shared_items > kDownWarps) return false;
    l.add(moe_down_slab<F, S>, dim3(p.slabs, o.x.rows()), dim3(kDownWarps * 32), uint32_t(shared), p, "slab");
    return true;
}

template <SlabKind F>
bool launch_down(Lowering& l, const MoeDownSlab& p, bool same) {
    return same ? launch_down_with<F, F>(l, p) : launch_down_with<F, SlabKind::q8>(l, p);
}

}  // namespace

bool lower_slab(Lowering& l, const MoeGlu& op) {
    if (op.x.rows() > kMoeRows || op.gate.pairing != Pairing::gate || op.gate.in % kSlabColumns ||
        !routable(op.router, op.gate.experts))
        return false;
    MoeGluSlab p{};
    p.op = op;
    p.data = static_cast<const std::byte*>(op.gate.data);
    p.factor = reinterpret_cast<const float2*>(op.gate.scale);
    p.inverse_columns = 1.0f / float(op.gate.in);
    p.items = op.gate.in / kSlabColumns;
    p.slabs = op.gate.out / 8;
    p.experts = op.gate.experts;
    if (op.x.rows() > 1)
        p.routes = {l.scratch<int32_t>(kMoeRows * kMostTopK), l.scratch<float>(kMoeRows * kMostTopK)};
    const auto launch = [&] {
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
    };
    if (!launch()) return false;
    if (p.routes.id) l.keep(op.y.data, p.routes);
    return true;
}

bool lower_slab(Lowering& l, const MoeDownAdd& op) {
    const bool shared = op.shared_down.data;
    if (op.x.rows() > kMoeRows || !is_slab(op.down.quant) || op.down.in % kSlabColumns ||
        !routable(op.router, op.down.experts))
        return false;
    if (shared && op.shared_down.quant != Quant::q8_0_slab && op.shared_down.quant != op.down.quant)
        return false;
    if (shared && op.shared_down.in % kSlabColumns) return false;
    MoeDownSlab p{};
    p.op = op;
    p.data = static_cast<const std::byte*>(op.down.data);
    p.factor = reinterpret_cast<const float2*>(op.down.scale);
    p.experts = op.down.experts;
    p.slabs = op.down.out / kSlabRows;
    p.items = op.down.in / kSlabColumns;
    p.inverse = 65535 / p.items + 1;
    if (shared) {
        p.shared_data = static_cast<const std::byte*>(op.shared_down.data);
        p.shared_factor = reinterpret_cast<const float2*>(op.shared_down.scale);
        p.shared_items = op.shared_down.in / kSlabColumns;
    }
    l.kept(op.h.data, p.routes);
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
