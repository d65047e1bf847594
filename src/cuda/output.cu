// output.cu — what a step answers with.   (ops.h: Output)
#include "cuda/linear_generic.cuh"
#include "cuda/linear_slab.h"
#include "cuda/output_stages.cuh"

namespace sparkinfer::cuda {

// The source row of each output, 0 beyond the step's own (their results are not written).
struct OutputRows {
    StepView step;
    int32_t* source;
};
__global__ void output_rows(const OutputRows p) {
    wait_for_predecessor();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    p.source[i] = i < p.step.header().outputs ? p.step.outputs()[i] : 0;
}

struct CopyRows {
    Output op;
};
__global__ void __launch_bounds__(256) copy_hidden(const CopyRows p) {
    wait_for_predecessor();
    const Output& o = p.op;
    if (int(blockIdx.x) >= o.step.header().outputs) return;
    const int row = o.step.outputs()[blockIdx.x];
    const bool present = live_row(o.step, o.slots, row).present;
    for (int i = threadIdx.x; i < o.x.cols(); i += blockDim.x)
        o.rows.row(blockIdx.x)[i] = present ? o.x.row(row)[i] : 0;
}

static void add_stages(Lowering& l, const Output& op, int32_t rows) {
    CHECK(rows <= kMaxOutputs, "{} rows of logits at a time", rows);
    const int32_t tiles_all = (op.head.out + kChunkTile - 1) / kChunkTile,
                  tiles = (tiles_all + kMaxSlices - 1) / kMaxSlices;
    StageCall p{op, op.head.out, tiles, (tiles_all + tiles - 1) / tiles, nullptr, nullptr};
    p.chunks = l.scratch<Chunk>(int64_t(rows) * p.chunk_count());
    const dim3 grid(p.slices, rows);
    if (op.kind == OutputKind::select) {
        p.adjusted = l.scratch<float>(rows * p.adjusted_stride());
        l.add(output_chunks<true>, grid, dim3(kChunkThreads), 0, p, "chunks");
        l.add(output_choose, dim3(rows), dim3(kSelectThreads), 0, p, "choose");
    } else {
        l.add(output_chunks<false>, grid, dim3(kChunkThreads), 0, p, "chunks");
        l.add(output_score, dim3(rows), dim3(kSelectThreads), 0, p, "logprobs");
    }
}

void lower(Lowering& l, const Output& op) {
    if (op.kind == OutputKind::none) return;
    const bool blocked = op.kind == OutputKind::select || op.kind == OutputKind::logprobs;
    const int32_t rows = blocked ? op.scratch.rows() : op.rows.rows();
    if (op.kind == OutputKind::hidden) return l.add(copy_hidden, dim3(rows), dim3(256), 0, {op}, "hidden");
    const int32_t width = int32_t(op.x.cols());
    const Tensor& to = blocked ? op.scratch : op.rows;
    if (!lower_slab_head(l, op, to)) {
        int32_t* source = l.scratch<int32_t>((rows + 31) / 32 * 32);
        float* n = l.scratch<float>(int64_t(rows) * width);
        l.add(output_rows, dim3((rows + 31) / 32), dim3(32), 0, {op.step, source}, "rows");
        add_rms_norm(l, rows,
                     {static_cast<const float*>(op.x.data), op.x.stride,
                      static_cast<const float*>(op.norm.data), n, width, op.eps, source});
        add_linear_generic(
            l, {n, static_cast<float*>(to.data), width, to.stride, op.head, nullptr, rows, 1, false});
    }
    if (blocked) add_stages(l, op, rows);
}

}  // namespace sparkinfer::cuda
