// gated_delta.cu — the gated delta rule with its convolution and state.   (ops.h: GatedDelta, state_layout.h)
#include "cuda/gated_delta_prepare.cuh"
#include "cuda/gated_delta_scan.cuh"
#include "cuda/gated_delta_step.cuh"

namespace sparkinfer::cuda {
namespace {

// Whole clusters of delta_step that a device holds per value head: more would only queue.
int32_t resident_segments(const DeviceInfo& d, int32_t blocks_sm, int32_t blocks_segment) {
    return std::max(1, d.sms * blocks_sm / blocks_segment);
}

// Long segments in chunks; the others row by row, between them.
void lower_long(Lowering& l, const DeltaCall& call, dim3 step_grid, int32_t segments) {
    const StateLayer& layer = call.op.state;
    const int32_t rows = call.op.qkv.rows(), longs = std::min(kMostLong, rows / (kMaxVerifyRows + 1));
    const int64_t chunks = rows / kChunkRows + 2 * longs;
    DeltaChunks p{call, {}, nullptr, nullptr, nullptr};
    p.plan.counts = l.scratch<int32_t>(2);
    p.plan.rank = l.scratch<int32_t>(rows);
    p.plan.longs = l.scratch<DeltaLong>(longs);
    p.plan.chunks = l.scratch<DeltaChunk>(chunks);
    p.keys = l.scratch<std::byte>(chunks * layer.key_heads * kChunkKeys);
    p.queries = l.scratch<std::byte>(chunks * layer.key_heads * kChunkQueries);
    p.heads = l.scratch<std::byte>(chunks * layer.value_heads * kChunkHead);
    p.call.rank = p.plan.rank;
    l.add(delta_plan, dim3(1), dim3(256), 0, p, "plan");
    l.add(delta_step<false, 3>, step_grid, dim3(kDeltaThreads), 0, p.call, "step");

    const int32_t blocks = kScanBlocks * layer.value_heads;
    const auto fit = [&](int stages, int times) {
        const int32_t bytes = ScanShared::bytes(stages);
        return bytes <= l.device().shared_block && times * (bytes + 1024) <= l.device().shared_sm;
    };
    // A chunk ahead where each multiprocessor has one block; else two blocks wait in turn.
    const bool ahead = blocks <= l.device().sms && fit(2, 1);
    const int32_t side_by_side =
        std::min(longs, resident_segments(l.device(), !ahead && fit(1, 2) ? 2 : 1, blocks));
    l.add(delta_prepare, dim3(layer.key_heads, int32_t(std::min<int64_t>(chunks, rows / kChunkRows + 8))),
          dim3(kPrepareThreads), PrepareShared::kBytes, p, "chunks");
    l.add(ahead ? delta_scan<2> : delta_scan<1>, dim3(blocks, side_by_side), dim3(kScanThreads),
          ScanShared::bytes(ahead ? 2 : 1), p, "scan");
    l.add(delta_ring, dim3(segments), dim3(256), 0, p.call, "ring");
}

}  // namespace

void lower(Lowering& l, const GatedDelta& op) {
    CHECK(op.state.width == kDeltaWidth && op.state.taps == kDeltaTaps && op.state.value_heads <= 256,
          "gated_delta heads of {}, {} taps, {} value heads", op.state.width, op.state.taps,
          op.state.value_heads);
    const int32_t rows = op.qkv.rows(), segments = rows < 1 ? 1 : rows < 64 ? rows : 64;
    const DeltaCall p{op, state_layout(op.state), nullptr};
    const int32_t blocks = kDeltaBlocks * op.state.value_heads;
    if (rows <= kMaxVerifyRows) {
        // One row: no spill, and its clusters fit beside the neighbours' blocks. More: three blocks hide the
        // exchanges.
        l.add(rows == 1 ? delta_step<true, 2> : delta_step<true, 3>, dim3(blocks, segments), dim3(kDeltaThreads), 0, p,
              "step");
        return;
    }
    // Steps of so many rows are prompts in the main: what has no segment of its own is not worth its launch.
    const int32_t side_by_side = rows <= 64 ? segments : resident_segments(l.device(), 3, blocks);
    lower_long(l, p, dim3(blocks, std::min(segments, side_by_side)), segments);
}

}  // namespace sparkinfer::cuda
