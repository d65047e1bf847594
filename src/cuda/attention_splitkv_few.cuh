// attention_splitkv_few.cuh — attention_splitkv.cuh for the short segments of a step of many rows.
// Computes   of ops.h: Attention, behind attention_prompt_plan.cuh, the rows of its plan.few
// Shapes     as attention_splitkv.cuh
// Mapping    a fixed number of clusters takes turns at (row, kv head, part of the row). All keys lie in the
//            pages. Up to 8 rows a row has the parts, and so the bits, that it has in a step of up to 8 rows;
//            beyond, fewer, the more rows there are.
// Memory     reads K and V once per row: 2·len·G·d·bytes. Floor = bytes / bandwidth.
// Limits     as attention_splitkv.cuh. sm_90+ (clusters).
// Tested     tests/ops/attention_prompt.cpp
#pragma once
#include "cuda/attention_prompt_plan.cuh"
#include "cuda/attention_splitkv.cuh"

namespace sparkinfer::cuda {

struct FewCall {
    SplitCall split;
    const int32_t* counts;  // of the plan
    const int32_t* few;
};

// Kernel     attention_splitkv_few: 168 registers
template <class S>
__global__ void __cluster_dims__(kSplitCluster, 1, 1) __launch_bounds__(S::kThreads, S::kMinBlocks)
    attention_splitkv_few(const FewCall p) {
    extern __shared__ __align__(128) std::byte split_memory[];
    wait_for_predecessor();
    const Attention& o = p.split.op;
    const int rows = p.counts[1], groups = o.kv.heads, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    const int spread = int(gridDim.x) / kSplitCluster / max(rows * groups, 1);
    const int most = rows <= kSplitRows ? p.split.clusters : min(max(spread, 1), p.split.clusters);
    const SplitShared<S> shared(split_memory, warp);
    for (int unit = blockIdx.x / kSplitCluster; unit < rows * groups * most;
         unit += gridDim.x / kSplitCluster) {
        const int place = unit / (groups * most), g = unit / most % groups, cluster = unit % most;
        const int rank = blockIdx.x % kSplitCluster, r = p.few[place];
        SplitRow s;
        s.row = live_row(o.step, o.slots, r);
        s.mine = s.row;
        s.old_end = s.row.index + 1;
        s.share<S>(cluster * kSplitCluster + rank, most);
        if (cluster >= s.clusters) continue;
        split_attend<S>(p.split, shared, s, cluster, place, r, g, rank, warp, lane);
        __syncthreads();
    }
}

}  // namespace sparkinfer::cuda
