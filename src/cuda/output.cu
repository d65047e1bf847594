// output.cu — what a step answers with.   (ops.h: Output)
#include "cuda/linear_generic.cuh"
#include "cuda/output_select.cuh"

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
    for (int i = threadIdx.x; i < o.x.cols(); i += blockDim.x) o.rows.row(blockIdx.x)[i] = present ? o.x.row(row)[i] : 0;
}

void lower(Lowering& l, const Output& op) {
    if (op.kind == OutputKind::none) return;
    const bool blocked = op.kind == OutputKind::select || op.kind == OutputKind::logprobs;
    const int32_t rows = blocked ? op.scratch.rows() : op.rows.rows();
    if (op.kind == OutputKind::hidden) return l.add(copy_hidden, dim3(rows), dim3(256), 0, {op}, "hidden");
    const int32_t width = int32_t(op.x.cols()), vocabulary = op.head.out;
    int32_t* source = l.scratch<int32_t>((rows + 31) / 32 * 32);
    float* n = l.scratch<float>(int64_t(rows) * width);
    l.add(output_rows, dim3((rows + 31) / 32), dim3(32), 0, {op.step, source}, "rows");
    add_rms_norm(l, rows, {static_cast<const float*>(op.x.data), op.x.stride, static_cast<const float*>(op.norm.data), n, width,
                           op.eps, source});
    const Tensor& to = blocked ? op.scratch : op.rows;
    add_linear_generic(l, {n, static_cast<float*>(to.data), width, to.stride, op.head, nullptr, rows, 1, false});
    if (!blocked) return;
    SelectCall p{op, vocabulary, nullptr, nullptr};
    if (op.kind == OutputKind::select) {
        p.adjusted = l.scratch<float>(int64_t(rows) * vocabulary);
        p.counts = l.scratch<int32_t>(int64_t(rows) * vocabulary);
        l.add(output_select, dim3(rows), dim3(kSelectThreads), 0, p, "select");
        l.add(output_advance, dim3(1), dim3(32), 0, p, "advance");
    } else {
        l.add(output_score, dim3(rows), dim3(kSelectThreads), 0, p, "logprobs");
    }
}

}  // namespace sparkinfer::cuda
