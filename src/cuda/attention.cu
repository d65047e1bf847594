// attention.cu — append to the KV pages and attend.   (ops.h: Attention)
#include <algorithm>

#include "cuda/attention_plain.cuh"
#include "cuda/attention_prompt.cuh"
#include "cuda/attention_splitkv_few.cuh"

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

// Images of pages: most bytes, and one for a row, so that they pay. Pages behind those are slower to read.
constexpr int64_t kImageBytes = 128 << 20;

// Of many rows, those of short segments.
template <class S>
void lower_few(Lowering& l, const Attention& op, const PromptCall& prompt) {
    const int32_t groups = op.kv.heads, clusters = std::max(1, kSplitBlocks / (kSplitCluster * groups));
    const int64_t units = int64_t(prompt.few) * groups * kSplitHeads;
    const FewCall p{{op, l.scratch<float>(units * clusters * S::kPartFloats), l.arrivals(), clusters},
                    prompt.plan.counts,
                    prompt.plan.few};
    const int32_t grid = std::min(2 * l.device().sms / kSplitCluster, prompt.few * groups * clusters);
    l.add(attention_splitkv_few<S>, dim3(grid * kSplitCluster), dim3(S::kThreads),
          uint32_t(S::shared_bytes(split_pieces(l.device().major))), p, "split few");
}

// Of many rows, those of long segments.
template <class S>
void lower_tiles(Lowering& l, const Attention& op, const PromptCall& p) {
    const int64_t most = int64_t(op.y.rows()) * op.heads;  // items: a tile has at least one row
    l.add(attention_prompt<S>, dim3(uint32_t(std::min<int64_t>(l.device().sms, most))), dim3(S::kThreads),
          S::kSharedBytes, p, "prompt");
}

// kLarge: the shape to take where it fits and there are enough rows for it; else kSmall.
template <class Large, class Small>
void lower_prompt(Lowering& l, const Attention& op) {
    constexpr int kWidth = Small::kWidth;
    using Stored = typename Small::Stored;
    const int32_t rows = op.y.rows(), groups = op.kv.heads;
    const bool large = (Large::kThreads == 256 || l.device().major == 9) &&
                       l.device().shared_block >= Large::kSharedBytes &&
                       int64_t(rows / Large::kRows) * op.heads * 2 >= 3 * l.device().sms;
    PromptCall p{};
    p.op = op;
    p.queries = l.scratch<std::byte>(int64_t(rows) * op.heads * kWidth * 2 * Small::kPlanes);
    p.query_factor = l.scratch<float>(int64_t(rows) * op.heads);
    p.plan = {l.scratch<int32_t>(4),       l.scratch<int32_t>(kFewMost), l.scratch<int32_t>(rows + 1),
              l.scratch<PromptTile>(rows), l.scratch<PromptTile>(rows),  nullptr};
    p.tile_rows = large ? Large::kRows : Small::kRows;
    if (l.device().major >= 9 && op.heads <= kSplitHeads * groups)
        p.few = std::min({rows, kFewMost, kArrivals / (groups * kSplitHeads)});
    using Image = PromptImage<kWidth, Stored>;
    const int64_t image_bytes = int64_t(2) * groups * Image::kBytes;  // of a page
    p.images_most = int32_t(
        std::min({int64_t(op.slots.count) * op.slots.max_pages, kImageBytes / image_bytes, int64_t(rows)}));
    p.images = l.scratch<std::byte>(p.images_most * image_bytes);
    p.plan.pages = l.scratch<PromptPage>(p.images_most);
    l.add(attention_append_many<kWidth, Stored>, dim3(1 + rows), dim3(kAppendThreads), 0, p, "append");
    l.add(attention_images<kWidth, Stored>,
          dim3(std::max(1, std::min(4 * l.device().sms, p.images_most * groups * 2))), dim3(256), 0, p,
          "images");
    if (p.few) lower_few<SplitShape<kWidth, Stored>>(l, op, p);
    if (large)
        lower_tiles<Large>(l, op, p);
    else
        lower_tiles<Small>(l, op, p);
}

template <int kWidth, class Stored>
void lower_many(Lowering& l, const Attention& op) {
    constexpr int kSmallKeys = kWidth == 256 ? 32 : 64, kSmallParts = kWidth == 256 ? 3 : 4;
    if constexpr (!std::is_same_v<Stored, float>)
        lower_prompt<PromptShape<kWidth, Stored, 8, 64, 4>,
                     PromptShape<kWidth, Stored, 4, kSmallKeys, kSmallParts>>(l, op);
    else if constexpr (kWidth == 64)
        lower_prompt<PromptShape<64, float, 4, 64, 4>, PromptShape<64, float, 4, 64, 4>>(l, op);
    else if constexpr (kWidth == 128)
        lower_prompt<PromptShape<128, float, 4, 32, 2>, PromptShape<128, float, 4, 32, 2>>(l, op);
    else
        lower_plain<kWidth, Stored>(l, op);
}

template <int kWidth, class Stored>
void lower_head(Lowering& l, const Attention& op) {
    if constexpr (kWidth == 64 || kWidth == 128 || kWidth == 256) {
        const int32_t rows = op.y.rows(), groups = op.kv.heads;
        if (l.device().major >= 9 && rows <= kSplitRows && op.heads <= kSplitHeads * groups &&
            rows * groups * kSplitHeads <= kArrivals)
            return lower_split<SplitShape<kWidth, Stored>>(l, op);
        if (rows > kSplitRows) return lower_many<kWidth, Stored>(l, op);
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
