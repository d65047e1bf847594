#include "cuda/matrix_planes.cuh"
#include "cuda/pack_rows.h"

#include <algorithm>

namespace sparkinfer::cuda {
namespace {

bool row_a_warp(int32_t columns, int32_t rows) {
    return columns <= 512 || (columns <= 2048 && rows >= kManyRows);
}
PackedRows add_pack(Lowering& l, const PlaneRows& rows, int32_t padded, const int32_t* place,
                    int32_t copies) {
    PackedRows to{nullptr, nullptr, padded, (rows.columns + kPackColumns - 1) / kPackColumns * kPackColumns};
    to.data = l.scratch<std::byte>(2 * to.plane_bytes());
    const PackPlanes p{rows, to, place, copies};
    constexpr int32_t kWarps = kPackThreads / 32;
    if (row_a_warp(to.columns, rows.rows))
        l.add(pack_planes<32, 8>, dim3(unsigned(rows.rows + kWarps - 1) / kWarps), dim3(kPackThreads), 0, p,
              "pack");
    else
        l.add(pack_planes<kPackThreads, 1>, dim3(unsigned(rows.rows)), dim3(kPackThreads), 0, p, "pack");
    return to;
}

template <int kM, int kN, bool kSingle>
void launch_form(Lowering& l, const MatrixPlanes& p, int64_t tiles) {
    l.add(matrix_planes<kM, kN, kSingle>, dim3(unsigned(std::min<int64_t>(tiles, l.device().sms))),
          dim3(kPlanesThreads), uint32_t(p.stages * planes_stage_bytes<kM, kN>()), p, "planes");
}

template <int kM, int kN>
void launch(Lowering& l, MatrixPlanes p, int32_t down) {
    constexpr int kStatic = 2 * kPlanesStages * int(sizeof(uint64_t));
    int32_t end = 0;
    for (int32_t i = 0; i < p.parts; ++i) p.m_end[i] = end += (p.part[i].w.out + kM - 1) / kM;
    p.stages = std::min(kPlanesStages, (l.device().shared_block - kStatic) / planes_stage_bytes<kM, kN>());
    if (planes_single(p.part[0].w.quant))
        launch_form<kM, kN, true>(l, p, int64_t(end) * down);
    else
        launch_form<kM, kN, false>(l, p, int64_t(end) * down);
}

// The form with the least time: rounds of tiles, by what a tile of each takes.
template <class Down>
void launch_best(Lowering& l, const MatrixPlanes& p, const Down& down) {
    struct Form {
        int m, n;
        float cost;
        void (*launch)(Lowering&, MatrixPlanes, int32_t);
    };
    constexpr Form kForms[] = {{128, 128, 8.0f, launch<128, 128>},
                               {64, 128, 4.6f, launch<64, 128>},
                               {64, 64, 3.2f, launch<64, 64>},
                               {32, 64, 2.4f, launch<32, 64>}};
    const Form* best = nullptr;
    float least = 0;
    for (const Form& f : kForms) {
        int64_t tiles = 0;
        for (int32_t i = 0; i < p.parts; ++i) tiles += (p.part[i].w.out + f.m - 1) / f.m;
        tiles *= down(f.n);
        const int64_t sms = l.device().sms;
        const float time = float((tiles + sms - 1) / sms) * f.cost;
        if (!best || time < least) best = &f, least = time;
    }
    best->launch(l, p, down(best->n));
}

}  // namespace

bool takes_dot(const PlaneRows& rows) {
    return row_a_warp((rows.columns + kPackColumns - 1) / kPackColumns * kPackColumns, rows.rows);
}

PackedRows add_pack_planes(Lowering& l, const PlaneRows& rows) {
    return add_pack(l, rows, (rows.rows + kPackRows - 1) / kPackRows * kPackRows, nullptr, 1);
}

PackedRows add_pack_planes(Lowering& l, const PlaneRows& rows, const ExpertOrder& order, int32_t copies) {
    return add_pack(l, rows, (order.places + kPackRows - 1) / kPackRows * kPackRows, order.place, copies);
}

void add_linear_planes(Lowering& l, const PackedRows& x, int32_t rows, std::span<const PlanesPart> parts,
                       bool add) {
    for (const bool single : {false, true}) {
        MatrixPlanes p{};
        p.x = x;
        for (const PlanesPart& part : parts)
            if (planes_single(part.w.quant) == single) p.part[p.parts++] = part;
        p.rows = rows;
        p.add = add;
        if (p.parts) launch_best(l, p, [&](int n) { return (rows + n - 1) / n; });
    }
}

void add_expert_planes(Lowering& l, const PackedRows& x, const ExpertOrder& order, const Weight& w, float* y,
                       int64_t y_stride, bool by_pair) {
    MatrixPlanes p{};
    p.x = x;
    p.parts = 1;
    p.part[0] = {w, y, y_stride};
    p.order = order;
    p.by_pair = by_pair;
    launch_best(l, p, [&](int n) { return order.most_tiles * ((order.tile_rows + n - 1) / n); });
}

}  // namespace sparkinfer::cuda
