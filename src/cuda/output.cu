// output.cu — what a step answers with.   (ops.h: Output)
#include "cuda/linear_generic.cuh"
#include "cuda/linear_slab.h"
#include "cuda/many_rows.h"
#include "cuda/output_stages.cuh"

namespace sparkinfer::cuda {

// The source row of each output from `first` on, 0 beyond the step's own (their results are not written).
struct OutputRows {
    StepView step;
    int32_t* source;
    int32_t first;
};
// Kernel     output_rows: 16 registers
__global__ void output_rows(const OutputRows p) {
    wait_for_predecessor();
    const int i = blockIdx.x * blockDim.x + threadIdx.x;
    p.source[i] = p.first + i < p.step.header().outputs ? p.step.outputs()[p.first + i] : 0;
}

struct CopyRows {
    Output op;
};
// Kernel     copy_hidden: 24 registers
__global__ void __launch_bounds__(256) copy_hidden(const CopyRows p) {
    wait_for_predecessor();
    const Output& o = p.op;
    if (int(blockIdx.x) >= o.step.header().outputs) return;
    const int row = o.step.outputs()[blockIdx.x];
    const bool present = live_row(o.step, o.slots, row).present;
    for (int i = threadIdx.x; i < o.x.cols(); i += blockDim.x)
        o.rows.row(blockIdx.x)[i] = present ? o.x.row(row)[i] : 0;
}

// Logits of a row that is absent are zeros.
struct ZeroAbsent {
    Output op;
};
// Kernel     zero_absent: 16 registers
__global__ void __launch_bounds__(256) zero_absent(const ZeroAbsent p) {
    wait_for_predecessor();
    const Output& o = p.op;
    if (int(blockIdx.x) >= o.step.header().outputs) return;
    if (live_row(o.step, o.slots, o.step.outputs()[blockIdx.x]).present) return;
    float* row = o.rows.row(blockIdx.x);
    for (int i = threadIdx.x; i < o.rows.cols(); i += blockDim.x) row[i] = 0;
}

// Logits of the outputs from `first` on, as many as `to` has rows.
static void add_logits(Lowering& l, const Output& op, const Tensor& to, int32_t first) {
    if (first == 0 && lower_slab_head(l, op, to)) return;
    const int32_t rows = to.rows(), width = int32_t(op.x.cols());
    int32_t* source = l.scratch<int32_t>((rows + 31) / 32 * 32);
    l.add(output_rows, dim3((rows + 31) / 32), dim3(32), 0, {op.step, source, first}, "rows");
    if (lower_many_head(l, op, to, source)) return;
    GenericLinear part{nullptr, static_cast<float*>(to.data), 0, to.stride, op.head, nullptr, rows, 1, false};
    add_normed_linears(l,
                       {static_cast<const float*>(op.x.data), op.x.stride, rows, width,
                        static_cast<const float*>(op.norm.data), op.eps, source},
                       {&part, 1});
}

static StageCall stages_of(Lowering& l, const Output& op) {
    const int32_t rows = op.scratch.rows(), tiles_all = (op.head.out + kChunkTile - 1) / kChunkTile,
                  tiles = (tiles_all + kMaxSlices - 1) / kMaxSlices;
    CHECK(rows <= kMaxOutputs, "{} rows of logits at a time", rows);
    StageCall p{op, 0, op.head.out, tiles, (tiles_all + tiles - 1) / tiles, nullptr, nullptr};
    p.chunks = l.scratch<Chunk>(int64_t(rows) * p.chunk_count());
    if (op.kind == OutputKind::select) p.adjusted = l.scratch<float>(rows * p.adjusted_stride());
    return p;
}

static void add_stages(Lowering& l, const StageCall& p) {
    const int32_t rows = p.op.scratch.rows();
    const dim3 grid(p.slices, rows);
    if (p.op.kind == OutputKind::select) {
        l.add(output_chunks<true>, grid, dim3(kChunkThreads), 0, p, "chunks");
        l.add(output_choose, dim3(rows), dim3(kSelectThreads), 0, p, "choose");
    } else {
        l.add(output_chunks<false>, grid, dim3(kChunkThreads), 0, p, "chunks");
        l.add(output_score, dim3(rows), dim3(kSelectThreads), 0, p, "logprobs");
    }
}

void lower(Lowering& l, const Output& op) {
    switch (op.kind) {
        case OutputKind::none: return;
        case OutputKind::hidden:
            return l.add(copy_hidden, dim3(op.rows.rows()), dim3(256), 0, {op}, "hidden");
        case OutputKind::logits:
            add_logits(l, op, op.rows, 0);
            return l.add(zero_absent, dim3(op.rows.rows()), dim3(256), 0, {op}, "zero_absent");
        case OutputKind::select:
        case OutputKind::logprobs: break;
    }
    StageCall p = stages_of(l, op);
    // A full scratch may stand for more outputs than it has rows; what the step does not list is left alone.
    const int32_t block = op.scratch.rows(), most = block < kMaxOutputs ? block : op.x.rows();
    for (p.first = 0; p.first < most; p.first += block) {
        add_logits(l, op, op.scratch, p.first);
        add_stages(l, p);
    }
}

}  // namespace sparkinfer::cuda
