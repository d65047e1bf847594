// embed.cu — Step's changes to Slots, then the rows of the token table.   (ops.h: Embed)
#include "cuda/launch.h"
#include "cuda/linear_generic.cuh"

namespace sparkinfer::cuda {

// A block per row. Every block applies all changes itself: the words are the same in each, and no block may
// read a cursor that another has yet to write.
// Kernel     embed: 40 registers
template <class F>
__global__ void __launch_bounds__(128) embed(const Embed p) {
    wait_for_predecessor();
    const StepHeader& h = p.step.header();
    for (int c = 0; c < h.changes; ++c) {
        const SlotChange change = p.step.changes()[c];
        uint32_t* to = p.slots.words(change.slot) + change.word;
        for (int i = threadIdx.x; i < change.count; i += blockDim.x)
            to[i] = p.step.payload()[change.payload + i];
    }
    if (h.changes) __syncthreads();
    const int r = blockIdx.x;
    const LiveRow row = live_row(p.step, p.slots, r);
    float* y = p.y.row(r);
    if (!row.present || row.token < 0 || row.token >= p.table.out) {
        for (int i = threadIdx.x; i < p.table.in; i += blockDim.x) y[i] = 0;
        return;
    }
    if (threadIdx.x == 0 && row.index < p.slots.max_tokens) p.slots.history(row.slot)[row.index] = row.token;
    const float factor = p.table.scale_count ? *p.table.scale : 1.0f;
    for (int i = threadIdx.x; i < p.table.in; i += blockDim.x)
        y[i] = element<F>(p.table, 0, row.token, i) * factor;
}

void lower(Lowering& l, const Embed& op) {
    with_format(op.table.quant,
                [&](auto f) { l.add(embed<decltype(f)>, dim3(op.y.rows()), dim3(128), 0, op, "rows"); });
}

}  // namespace sparkinfer::cuda
