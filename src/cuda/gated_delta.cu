// gated_delta.cu — the gated delta rule with its convolution and state.   (ops.h: GatedDelta, state_layout.h)
#include "cuda/gated_delta_rows.cuh"

namespace sparkinfer::cuda {

void lower(Lowering& l, const GatedDelta& op) {
    const int32_t rows = op.qkv.rows(), segments = rows < 64 ? rows : 64;
    DeltaCall p{op, l.scratch<float>(int64_t(rows) * op.state.channels)};
    CHECK(op.state.width == 128, "gated_delta heads of width {}", op.state.width);
    l.add(delta_convolve, dim3(op.state.channels / op.state.width, rows), dim3(op.state.width), 0, p, "convolve");
    l.add(delta_rule<128>, dim3(op.state.value_heads, segments), dim3(128), 0, p, "rows");
    l.add(delta_shared, dim3(segments), dim3(256), 0, p, "state");
}

}  // namespace sparkinfer::cuda
