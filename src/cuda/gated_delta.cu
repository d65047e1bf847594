// gated_delta.cu — the gated delta rule with its convolution and state.   (ops.h: GatedDelta, state_layout.h)
#include "cuda/gated_delta_heads.cuh"
#include "cuda/gated_delta_prepare.cuh"
#include "cuda/gated_delta_scan.cuh"

namespace sparkinfer::cuda {

// Kernel     delta_step: 96 registers, 9728 bytes
__global__ void __cluster_dims__(kDeltaBlocks, 1, 1) __launch_bounds__(kDeltaThreads, 2)
    delta_step(const __grid_constant__ DeltaCall p) {
    __shared__ DeltaShared s;
    let_successor_start();
    if (threadIdx.x == 0) {
        barrier_init(&s.arrived[0], 1);
        barrier_init(&s.arrived[1], 1);
        barrier_init_fence();
    }
    __syncthreads();
    cluster_arrive_initialised();
    if (threadIdx.x / 32 < kDeltaWarps)
        delta_run<false>(p, s);
    else
        delta_run<true>(p, s);
}

namespace {

// Up to so many rows, a row after the other takes less time than the launches of chunks do: batches of
// decoding.
constexpr int32_t kStepRows = 64;

// Segments that a device holds at once with so many blocks each: more would only queue.
int32_t resident_segments(const DeviceInfo& d, int32_t blocks_sm, int32_t blocks_segment) {
    return std::max(1, d.sms * blocks_sm / blocks_segment);
}

// Segments row by row. One: a head's four blocks, which fit beside the neighbours'. More: a block a head.
void add_steps(Lowering& l, const DeltaCall& call, int32_t segments) {
    const StateLayer& layer = call.op.state;
    if (segments == 1)
        return l.add(delta_step, dim3(kDeltaBlocks * layer.value_heads), dim3(kDeltaThreads), 0, call,
                     "step");
    const auto heads = layer.dtype == DType::bf16 ? delta_heads<uint16_t> : delta_heads<float>;
    l.add(heads, dim3(layer.value_heads, segments), dim3(kHeadThreads), 0, call, "heads");
}

// Long segments in chunks; the others row by row, between them.
void lower_long(Lowering& l, const DeltaCall& call, int32_t segments) {
    const StateLayer& layer = call.op.state;
    const int32_t blocks = kScanBlocks * layer.value_heads;
    const int32_t rows = call.op.qkv.rows();
    const int32_t longs = std::min(kMostLong, rows / (kMaxVerifyRows + 1));
    const int64_t chunks = rows / kChunkRows + 2 * longs;
    DeltaChunks p{call, {}, nullptr, nullptr, nullptr, nullptr};
    p.plan.counts = l.scratch<int32_t>(2);
    p.plan.rank = l.scratch<int32_t>(rows);
    p.plan.longs = l.scratch<DeltaLong>(longs);
    p.plan.chunks = l.scratch<DeltaChunk>(chunks);
    p.keys = l.scratch<std::byte>(chunks * layer.key_heads * kChunkKeys);
    p.queries = l.scratch<std::byte>(chunks * layer.key_heads * kChunkQueries);
    p.heads = l.scratch<std::byte>(chunks * layer.value_heads * kChunkHead);
    p.squares = l.scratch<float>(int64_t(rows) * layer.value_heads * 8);
    p.call.rank = p.plan.rank;
    l.add(delta_plan, dim3(1), dim3(256), 0, p, "plan");
    add_steps(l, p.call, std::min(segments, resident_segments(l.device(), 2, layer.value_heads)));

    const int32_t side_by_side = std::min(longs, resident_segments(l.device(), 1, blocks));
    const int32_t chunks_at_once = int32_t(std::min<int64_t>(chunks, rows / kChunkRows + 8));
    l.add(delta_prepare, dim3(layer.key_heads, chunks_at_once), dim3(kPrepareThreads), PrepareShared::kBytes,
          p, "chunks");
    l.add(delta_scan, dim3(blocks, side_by_side), dim3(kScanThreads), ScanShared::kBytes, p, "scan");
    const int32_t blocks_norm = kChunkRows / 8 * chunks_at_once,
                  heads_apart = std::clamp(8 * l.device().sms / blocks_norm, 1, layer.value_heads);
    l.add(delta_norm, dim3(kChunkRows / 8, chunks_at_once, heads_apart), dim3(256), 0, p, "norm");
    l.add(delta_ring, dim3(std::min(segments, kFewRows), layer.value_heads), dim3(256), 0, p.call, "ring");
}

}  // namespace

void lower(Lowering& l, const GatedDelta& op) {
    CHECK(op.state.width == kDeltaWidth && op.state.taps == kDeltaTaps && op.state.value_heads <= 256,
          "gated_delta heads of {}, {} taps, {} value heads", op.state.width, op.state.taps,
          op.state.value_heads);
    const int32_t rows = op.qkv.rows(), segments = rows < 1 ? 1 : rows < 64 ? rows : 64;
    const DeltaCall p{op, state_layout(op.state), nullptr};
    if (rows > kStepRows) return lower_long(l, p, segments);
    add_steps(l, p, segments);
    if (rows > kMaxVerifyRows)
        l.add(delta_ring, dim3(std::min(segments, kFewRows), op.state.value_heads), dim3(256), 0, p, "ring");
}

}  // namespace sparkinfer::cuda
