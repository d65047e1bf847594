// attention.cu — append to the KV pages, then attend.   (ops.h: Attention)
#include "cuda/attention_plain.cuh"

namespace sparkinfer::cuda {

template <int kWidth>
static void lower_width(Lowering& l, const Attention& op, float* q) {
    const int32_t rows = op.y.rows();
    const dim3 heads(op.heads + 2 * op.kv.heads, rows);
    if (op.kv.dtype == DType::bf16) {
        l.add(attention_append<kWidth, __nv_bfloat16>, heads, dim3(32), 0, {op, q}, "append");
        l.add(attention_plain<kWidth, __nv_bfloat16>, dim3(op.heads, rows), dim3(kAttentionWarps * 32), 0, {op, q}, "plain");
    } else {
        l.add(attention_append<kWidth, float>, heads, dim3(32), 0, {op, q}, "append");
        l.add(attention_plain<kWidth, float>, dim3(op.heads, rows), dim3(kAttentionWarps * 32), 0, {op, q}, "plain");
    }
}

void lower(Lowering& l, const Attention& op) {
    float* q = l.scratch<float>(int64_t(op.y.rows()) * op.heads * op.kv.width);  // [T, H, d] normalised and rotated
    switch (op.kv.width) {
        case 32: return lower_width<32>(l, op, q);
        case 64: return lower_width<64>(l, op, q);
        case 96: return lower_width<96>(l, op, q);
        case 128: return lower_width<128>(l, op, q);
        case 256: return lower_width<256>(l, op, q);
    }
    CHECK(false, "attention heads of width {}", op.kv.width);
}

}  // namespace sparkinfer::cuda
