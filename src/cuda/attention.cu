// attention.cu — append to the KV pages and attend.   (ops.h: Attention)
#include <algorithm>

#include "cuda/attention_plain.cuh"
#include "cuda/attention_splitkv.cuh"

namespace sparkinfer::cuda {
namespace {

template <int kWidth, class Stored>
void lower_plain(Lowering& l, const Attention& op) {
    const int32_t rows = op.y.rows();
    float* q = l.scratch<float>(int64_t(rows) * op.heads * kWidth);  // [T, H, d] normalised and rotated
    l.add(attention_append<kWidth, Stored>, dim3(op.heads + 2 * op.kv.heads, rows), dim3(32), 0, {op, q},
          "append");
    l.add(attention_plain<kWidth, Stored>, dim3(op.heads, rows), dim3(kAttentionWarps * 32), 0, {op, q},
          "plain");
}

template <class S>
void lower_split(Lowering& l, const Attention& op) {
    const int32_t rows = op.y.rows(), groups = op.kv.heads;
    const int32_t clusters = std::max(1, kSplitBlocks / (kSplitCluster * groups));
    const int64_t units = int64_t(rows) * groups * kSplitHeads;
    SplitCall p{op, l.scratch<float>(units * clusters * S::kPartFloats), l.arrivals(), clusters};
    l.add(attention_splitkv<S>, dim3(clusters * kSplitCluster, groups, rows), dim3(S::kThreads),
          uint32_t(S::shared_bytes(split_pieces(l.device().major))), p, "split");
}

template <int kWidth, class Stored>
void lower_head(Lowering& l, const Attention& op) {
    if constexpr (kWidth == 64 || kWidth == 128 || kWidth == 256) {
        const int32_t rows = op.y.rows(), groups = op.kv.heads;
        if (l.device().major >= 9 && rows <= kSplitRows && op.heads <= kSplitHeads * groups &&
            rows * groups * kSplitHeads <= kArrivals)
            return lower_split<SplitShape<kWidth, Stored>>(l, op);
    }
    lower_plain<kWidth, Stored>(l, op);
}

template <int kWidth>
void lower_width(Lowering& l, const Attention& op) {
    if (op.kv.dtype == DType::bf16) return lower_head<kWidth, __nv_bfloat16>(l, op);
    if (op.kv.dtype == DType::e4m3) return lower_head<kWidth, __nv_fp8_e4m3>(l, op);
    CHECK(op.kv.dtype == DType::f32, "KV pages of {}", dtype_name(op.kv.dtype));
    lower_head<kWidth, float>(l, op);
}

}  // namespace

void lower(Lowering& l, const Attention& op) {
    switch (op.kv.width) {
        case 32: return lower_width<32>(l, op);
        case 64: return lower_width<64>(l, op);
        case 96: return lower_width<96>(l, op);
        case 128: return lower_width<128>(l, op);
        case 256: return lower_width<256>(l, op);
    }
    CHECK(false, "attention heads of width {}", op.kv.width);
}

}  // namespace sparkinfer::cuda
