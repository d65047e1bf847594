// gated_delta.cu — the gated delta rule with its convolution and state.   (ops.h: GatedDelta, state_layout.h)
#include "cuda/gated_delta_step.cuh"

namespace sparkinfer::cuda {

void lower(Lowering& l, const GatedDelta& op) {
    CHECK(op.state.width == kDeltaWidth && op.state.taps == kDeltaTaps && op.state.value_heads <= 256,
          "gated_delta heads of {}, {} taps, {} value heads", op.state.width, op.state.taps,
          op.state.value_heads);
    const int32_t rows = op.qkv.rows(), segments = rows < 1 ? 1 : rows < 64 ? rows : 64;
    const DeltaCall p{op, state_layout(op.state)};
    const dim3 grid(kDeltaBlocks * op.state.value_heads, segments);
    if (rows <= kMaxVerifyRows) {
        // One row: no spill, and its clusters fit beside the neighbours' blocks. More: three blocks hide the
        // exchanges.
        l.add(rows == 1 ? delta_step<true, 2> : delta_step<true, 3>, grid, dim3(kDeltaThreads), 0, p, "step");
        return;
    }
    l.add(delta_step<false, 3>, grid, dim3(kDeltaThreads), 0, p, "step");
    l.add(delta_ring, dim3(segments), dim3(256), 0, p, "ring");
}

}  // namespace sparkinfer::cuda
