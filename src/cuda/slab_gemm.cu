#include "cuda/slab_gemm.h"

#include <algorithm>
#include <cmath>

#include "cuda/slab_gemm_mma.cuh"
#include "cuda/slab_gemm_wgmma.cuh"

namespace sparkinfer::cuda {
namespace {

using EncodeTiled = CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                                 const cuuint64_t*, const cuuint32_t*, const cuuint32_t*,
                                 CUtensorMapInterleave, CUtensorMapSwizzle, CUtensorMapL2promotion,
                                 CUtensorMapFloatOOBfill);

EncodeTiled encode_tiled() {
    static const EncodeTiled found = [] {
        void* f = nullptr;
        cudaDriverEntryPointQueryResult answer{};
        const cudaError_t status =
            cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &f, 12000, cudaEnableDefault, &answer);
        CHECK(status == cudaSuccess && f, "the driver has no cuTensorMapEncodeTiled");
        return reinterpret_cast<EncodeTiled>(f);
    }();
    return found;
}

// Slabs as rows of a matrix, of which a box is `bytes` of each of `box_slabs`; slabs beyond the last read as
// zeros.
CUtensorMap slab_map(const std::byte* data, int64_t slab_bytes, int64_t slabs, int bytes, int box_slabs,
                     bool wide) {
    CUtensorMap map{};
    const int element = wide ? 8 : 4;  // a box has at most 256 elements a row
    const cuuint64_t size[2] = {cuuint64_t(slab_bytes / element), cuuint64_t(slabs)};
    const cuuint64_t stride[1] = {cuuint64_t(slab_bytes)};
    const cuuint32_t box[2] = {cuuint32_t(bytes / element), cuuint32_t(box_slabs)}, step[2] = {1, 1};
    const CUresult status = encode_tiled()(
        &map, wide ? CU_TENSOR_MAP_DATA_TYPE_INT64 : CU_TENSOR_MAP_DATA_TYPE_UINT32, 2,
        const_cast<std::byte*>(data), size, stride, box, step, CU_TENSOR_MAP_INTERLEAVE_NONE,
        CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_L2_PROMOTION_L2_256B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
    CHECK(status == CUDA_SUCCESS, "a tensor map of {} slabs of {} bytes: error {}", slabs, slab_bytes,
          int(status));
    return map;
}

int32_t slabs_of(const Weight& w) { return w.out / (w.pairing == Pairing::none ? 16 : 8); }

// Tile heights and widths, and how many blocks share each tile of the last wave along K, by what the waves
// cost, in cycles of a multiprocessor.
struct Tiling {
    int32_t halves, token_rows, token_tiles, whole, splits;
};
constexpr int32_t kMostShared = kArrivals / 2, kMostSplits = 8;

// A step of 64 columns: products, or what a warp waits for its own weights to become FP16. Two blocks a
// multiprocessor, up to 32 rows, do not hinder each other.
double step_cycles(int32_t halves, int32_t rows) {
    return std::max(4.0 * halves * rows, (rows <= 64 ? 620.0 : 660.0) * halves);
}
Tiling choose_tiling(const SlabGemm& p, int32_t sms) {
    Tiling best{};
    double least = 1e30;
    for (const int32_t halves : {2, 1}) {
        int32_t row_tiles = 0;
        for (int i = 0; i < p.parts; ++i) row_tiles += (p.part[i].slabs + 8 * halves - 1) / (8 * halves);
        for (int32_t most = 16; most <= kRaggedTokens; most += 16) {
            const int32_t tiles = (p.rows + most - 1) / most,
                          rows = ((p.rows + tiles - 1) / tiles + 15) / 16 * 16;
            const int32_t all = row_tiles * tiles, slots = rows <= 32 ? 2 * sms : sms;
            const double step = step_cycles(halves, rows), end = 8.0 * halves * rows + 1500;
            for (int32_t splits = 1; splits <= kMostSplits; ++splits) {
                const int32_t whole = splits == 1 ? all : all / slots * slots, rest = all - whole;
                // The sums of two halves, and what adds them up, do not fit the registers.
                if (splits > 1 && (halves == 2 || !rest || rest * splits > slots || rest > kMostShared ||
                                   4 * splits > p.steps))
                    break;
                double cost = (whole + slots - 1) / slots * (p.steps * step + end);
                // The last of a tile's blocks reads what the others have written, 30 bytes a cycle.
                const double sums = 512.0 * halves * rows;
                if (splits > 1 && rows > 64) cost *= 1.07;  // its kernel has fewer registers for products
                if (splits > 1)
                    cost += p.steps * step / splits + end + 2500 + 900.0 * splits + sums * (splits + 1) / 30;
                if (cost <= least)
                    least = cost, best = {halves, rows, (p.rows + rows - 1) / rows, whole, splits};
            }
        }
    }
    return best;
}

// Tiles of `box` slabs; the tensor maps of each part.
template <SlabKind F>
void set_tiles(Lowering& l, SlabGemm& p, std::span<const Weight* const> weights, int box) {
    using W = HalfSlab<F>;
    p.row_tiles = 0;
    for (int i = 0; i < kMaxParts; ++i) {
        GemmPart& part = p.part[i];
        part.first_tile = i < p.parts ? p.row_tiles : INT32_MAX;
        if (i >= p.parts) continue;
        p.row_tiles += (part.slabs + box - 1) / box;
        if (l.dry()) continue;
        const int64_t bytes = int64_t(weights[size_t(i)]->in / kSlabColumns) * SlabOf<F>::item,
                      slabs = int64_t(part.slabs) * weights[size_t(i)]->experts;
        part.codes = slab_map(part.data, bytes, slabs, W::kCodes, box, F == SlabKind::q8);
        if (W::kScales) part.scales = slab_map(part.data, bytes, slabs, W::kScales, box, false);
    }
}
dim3 grid_of(const Lowering& l, const SlabGemm& p, int32_t residents = 1) {
    const int32_t tiles =
        p.order.tile_rows ? INT32_MAX : p.whole + (p.row_tiles * p.token_tiles - p.whole) * p.splits;
    return dim3(unsigned(std::min(l.device().sms * residents, tiles)));
}

template <SlabKind F, int kHalves, int kTokens>
void launch_wgmma(Lowering& l, SlabGemm& p, std::span<const Weight* const> weights) {
    using L = GemmLayout<F, kHalves, kTokens>;
    set_tiles<F>(l, p, weights, L::kSlabs);
    if (p.splits > 1) {
        p.partial = l.scratch<float>(int64_t(p.row_tiles * p.token_tiles - p.whole) * p.splits * kHalves *
                                     kTokens * 128);
        p.arrivals = l.arrivals();
    }
    const auto add = [&](auto kernel) {
        l.add(kernel, grid_of(l, p, L::kResidents), dim3(kGemmThreads), uint32_t(L::bytes(L::kStages)), p,
              "wgmma");
    };
    if constexpr (kHalves == 2) {
        add(slab_gemm_wgmma<F, kHalves, kTokens, false>);
    } else if constexpr (kTokens == kRaggedTokens) {
        if (p.splits > 1)
            add(slab_gemm_wgmma<F, kHalves, kTokens, true>);
        else
            add(slab_gemm_wgmma<F, kHalves, kTokens, false>);
    } else {
        add(slab_gemm_wgmma<F, kHalves, kTokens, true>);
    }
}
template <SlabKind F, int kTokens>
void launch_mma(Lowering& l, SlabGemm& p, std::span<const Weight* const> weights) {
    using L = MmaLayout<F, kTokens>;
    set_tiles<F>(l, p, weights, kMmaSlabs);
    if (!p.order.tile_rows) {
        const int32_t tiles = (p.rows + kTokens - 1) / kTokens;
        p.token_rows = ((p.rows + tiles - 1) / tiles + 15) / 16 * 16;
        p.token_tiles = (p.rows + p.token_rows - 1) / p.token_rows;
    }
    p.whole = p.row_tiles * p.token_tiles;
    l.add(slab_gemm_mma<F, kTokens>, grid_of(l, p), dim3(kMmaGemmThreads), uint32_t(L::bytes(L::kStages)), p,
          "mma");
}

template <SlabKind F, int kHalves>
void launch_wgmma(Lowering& l, SlabGemm& p, std::span<const Weight* const> weights, int32_t tokens) {
    if (tokens <= 8) return launch_wgmma<F, kHalves, 8>(l, p, weights);
    if (tokens <= 16) return launch_wgmma<F, kHalves, 16>(l, p, weights);
    if (tokens <= 32) return launch_wgmma<F, kHalves, 32>(l, p, weights);
    if (tokens <= 64) return launch_wgmma<F, kHalves, 64>(l, p, weights);
    return launch_wgmma<F, kHalves, kRaggedTokens>(l, p, weights);
}

// The height of tiles that leaves the fewest multiprocessors idle in the last wave, as far as the expected
// number of experts with rows tells.
int32_t expert_halves(const SlabGemm& p, const Weight& w, int32_t sms) {
    const double used = w.experts * (1 - std::exp(-double(p.order.pairs) / w.experts));
    const auto cost = [&](int32_t halves) {
        const double tiles = used * ((p.part[0].slabs + 8 * halves - 1) / (8 * halves));
        return halves * std::ceil(tiles / (sms * (p.order.tile_rows <= 32 ? 2 : 1)));
    };
    return p.order.tile_rows > 64 || cost(2) <= cost(1) ? 2 : 1;
}

template <SlabKind F>
void launch(Lowering& l, SlabGemm& p, std::span<const Weight* const> weights) {
    const bool experts = p.order.tile_rows > 0;
    p.splits = 1;
    if (!l.device().wgmma) {
        if ((experts ? p.order.tile_rows : p.rows) <= 64) return launch_mma<F, 64>(l, p, weights);
        return launch_mma<F, 128>(l, p, weights);
    }
    if (experts) {
        if (expert_halves(p, *weights[0], l.device().sms) == 2)
            return launch_wgmma<F, 2>(l, p, weights, p.order.tile_rows);
        return launch_wgmma<F, 1>(l, p, weights, p.order.tile_rows);
    }
    const Tiling t = choose_tiling(p, l.device().sms);
    p.token_rows = t.token_rows, p.token_tiles = t.token_tiles;
    p.whole = t.whole, p.splits = t.splits;
    if (t.halves == 2)
        launch_wgmma<F, 2>(l, p, weights, t.token_rows);
    else
        launch_wgmma<F, 1>(l, p, weights, t.token_rows);
}

void launch_kind(Lowering& l, SlabGemm& p, SlabKind kind, std::span<const Weight* const> weights) {
    switch (kind) {
        case SlabKind::k4: return launch<SlabKind::k4>(l, p, weights);
        case SlabKind::k5: return launch<SlabKind::k5>(l, p, weights);
        case SlabKind::k6: return launch<SlabKind::k6>(l, p, weights);
        default: return launch<SlabKind::q8>(l, p, weights);
    }
}

void add_part(SlabGemm& p, const Product& product) {
    GemmPart& part = p.part[p.parts++];
    part.data = static_cast<const std::byte*>(product.w.data);
    part.y = product.y;
    part.y_stride = product.y_stride;
    part.factor = product.w.scale;
    part.slabs = slabs_of(product.w);
    part.powers = row_powers_of(product.w);
    part.aligned = reinterpret_cast<uintptr_t>(product.y) % 16 == 0 && product.y_stride % 4 == 0;
}

}  // namespace

// Where experts have few rows, weights are what takes time, and kernels for a fixed few read them faster.
int32_t expert_tile_rows(const Lowering& l, int32_t pairs, int32_t experts) {
    const int32_t mean = pairs / experts;
    if (!l.device().wgmma) return mean <= 24 ? 64 : 128;
    return mean <= 3 ? 8 : mean <= 6 ? 16 : mean <= 22 ? 32 : mean <= 44 ? 64 : kRaggedTokens;
}

// |w| < 1/2 and |x| < 2^15 as multiplied.
static int32_t half_power(int32_t columns) {
    int32_t power = -1;
    while (int64_t(1) << (power + 1) < columns) ++power;
    return power;
}
float half_undo(const Weight& w, int32_t columns) {
    const SlabKind kind = slab_kind(w.quant);
    const int32_t by = kind == SlabKind::q8   ? kHalfPower<SlabKind::q8>
                       : kind == SlabKind::k6 ? kHalfPower<SlabKind::k6>
                                              : kHalfPower<SlabKind::k4>;
    return std::ldexp(1.0f, 24 - by + half_power(columns));
}
const int8_t* row_powers_of(const Weight& w) {
    const int64_t bytes = int64_t(slabs_of(w)) * w.experts * kSlabRows * row_bytes(w);
    return static_cast<const int8_t*>(w.data) + bytes;
}

bool has_slab_gemm(const Weight& w) {
    return w.quant == Quant::q4_k_slab || w.quant == Quant::q5_k_slab || w.quant == Quant::q6_k_slab ||
           w.quant == Quant::q8_0_slab;
}

void add_slab_gemm(Lowering& l, const PackedRows& x, int32_t rows, std::span<const Product> products,
                   SlabMode mode) {
    for (const SlabKind kind : {SlabKind::k4, SlabKind::k5, SlabKind::k6, SlabKind::q8}) {
        SlabGemm p{};
        std::vector<const Weight*> weights;
        for (const Product& product : products) {
            if (slab_kind(product.w.quant) != kind) continue;
            add_part(p, product);
            weights.push_back(&product.w);
        }
        if (weights.empty()) continue;
        p.x = x, p.rows = rows, p.steps = x.columns / kPackColumns, p.mode = mode;
        p.half_power = half_power(x.columns);
        launch_kind(l, p, kind, weights);
    }
}

void add_expert_gemm(Lowering& l, const PackedRows& x, const ExpertOrder& order, const Product& product,
                     SlabMode mode, int32_t inner, int32_t inner_stride) {
    SlabGemm p{};
    add_part(p, product);
    p.x = x, p.order = order, p.steps = x.columns / kPackColumns, p.mode = mode;
    p.inner = inner, p.inner_stride = inner_stride;
    p.half_power = half_power(x.columns);
    const Weight* weight = &product.w;
    launch_kind(l, p, slab_kind(product.w.quant), {&weight, 1});
}

}  // namespace sparkinfer::cuda
