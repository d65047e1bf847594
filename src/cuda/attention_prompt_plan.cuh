// attention_prompt_plan.cuh — the first launch of attention for many rows: every head normed, rotated and
// either appended to the pages or laid down as an operand, and the step's rows put in order as work.
// Computes   of ops.h: Attention what comes before attending
// Shapes     q [T, H, d∈{64,128,256}]   pages [n, 2, G, 64, d] BF16|F32|FP8
//            queries [T, H, planes, d]: one plane of FP16 with a power of two a (row, head), or, for F32
//            pages, two of BF16 whose sum has 16 bits
// Mapping    block 0 plans; block 1 + r has row r, its warps take turns at the row's H + 2G heads. Absent
//            rows: y = 0.
// Memory     reads q, k and v once, writes half as much.
// Limits     none on T. sm_80+.
// Tested     tests/ops/attention_prompt.cpp
#pragma once
#include <cuda_fp16.h>

#include <type_traits>

#include "cuda/attention_heads.cuh"
#include "cuda/lib/math.cuh"
#include "cuda/lib/mma_bf16.cuh"
#include "cuda/lib/pdl.cuh"

namespace sparkinfer::cuda {

constexpr int kFewSegment = 8;  // rows of a segment that attention_splitkv_few.cuh takes …
constexpr int kFewMost = 64;    // … and of a step
constexpr int kSortMost = 1024;
constexpr int kAppendWarps = 8, kAppendThreads = kAppendWarps * 32;

// Rows at consecutive indices of one slot: work of attention_prompt.cuh. The segment's first `images` pages
// have images, from `image` on.
struct alignas(16) PromptTile {
    int32_t row, rows, index, slot;
    int32_t image, images, reserved[2];
};
// A page to make an image of: its first `limit` tokens are keys.
struct alignas(16) PromptPage {
    int32_t slot, page, limit, reserved;
};
// The work of a step.
struct PromptPlan {
    int32_t* counts;     // tiles, rows in `few`, images
    int32_t* few;        // [kFewMost] rows of short segments
    int32_t* runs;       // [T + 1] first rows of segments, then the end
    PromptTile* found;   // [T] in the order of rows
    PromptTile* sorted;  // [T] most keys first
    PromptPage* pages;   // [most images]
};

struct PromptCall {
    Attention op;
    std::byte* queries;
    float* query_factor;  // [T, H] what the operands are to be multiplied with
    PromptPlan plan;
    std::byte* images;                    // [most images, G, K and V] (attention_prompt_images.cuh)
    int32_t tile_rows, few, images_most;  // rows of a tile; most rows in plan.few, 0: none
};

// x = operand · 2^e. 0 where FP16 holds every value well enough as it is: then nothing is rounded that BF16
// did not round already, but far below the greatest.
__device__ __forceinline__ int operand_exponent(float greatest) {
    const int e = int(__float_as_uint(greatest) >> 23) - 127;
    return greatest == 0 || (e >= -8 && e <= 14) ? 0 : min(max(e - 8, -100), 120);
}

// A prepared query head [kWidth] (shared) times `scale`, to its place in the operands. One warp.
template <int kWidth, bool kExact>
__device__ __forceinline__ void lay_query(std::byte* to, float* factor, const float* head, float scale,
                                          int lane) {
    uint32_t* words = reinterpret_cast<uint32_t*>(to);
    if constexpr (kExact) {
#pragma unroll
        for (int i = lane; i < kWidth / 2; i += 32)
            split_bf16(head[2 * i] * scale, head[2 * i + 1] * scale, words[i], words[kWidth / 2 + i]);
    } else {
        float greatest = 0;
#pragma unroll
        for (int i = lane; i < kWidth; i += 32) greatest = fmaxf(greatest, fabsf(head[i]) * scale);
        const int e = operand_exponent(warp_max(greatest));
        const float by = scale * power_of_two(-e);
#pragma unroll
        for (int i = lane; i < kWidth / 2; i += 32) {
            const __half2 h = __floats2half2_rn(head[2 * i] * by, head[2 * i + 1] * by);
            words[i] = reinterpret_cast<const uint32_t&>(h);
        }
        if (lane == 0) *factor = power_of_two(e);
    }
}

// runs = first rows of the step's segments, as the rows tell; returns how many there are. Whole block.
__device__ __forceinline__ int find_runs(const Attention& o, int32_t* runs) {
    __shared__ int counted[kAppendWarps];
    const int rows = min(o.step.header().rows, o.y.rows()), lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    int total = 0;
    for (int first = 0; first <= rows; first += kAppendThreads) {
        const int r = first + threadIdx.x;
        bool starts = r <= rows;
        if (r > 0 && r < rows) {
            const LiveRow a = live_row(o.step, o.slots, r - 1), b = live_row(o.step, o.slots, r);
            starts = !(a.present && b.present && a.slot == b.slot && a.index + 1 == b.index);
        }
        const uint32_t vote = __ballot_sync(kWholeWarp, starts);
        __syncthreads();
        if (lane == 0) counted[warp] = __popc(vote);
        __syncthreads();
        int place = total + __popc(vote & ((1u << lane) - 1));
        for (int w = 0; w < kAppendWarps; ++w) {
            if (w < warp) place += counted[w];
            total += counted[w];
        }
        if (starts) runs[place] = r;
    }
    __syncthreads();
    return total - 1;
}

__device__ __forceinline__ int inclusive_scan(int v, int lane) {
#pragma unroll
    for (int d = 1; d < 32; d *= 2) {
        const int other = __shfl_up_sync(kWholeWarp, v, d);
        if (lane >= d) v += other;
    }
    return v;
}

// Short segments to plan.few, as far as it holds them, the others cut into plan.found. One warp; returns the
// number of tiles.
__device__ __forceinline__ int sort_out_runs(const PromptCall& p, int runs, int lane) {
    const Attention& o = p.op;
    int tiles = 0, few = 0, few_seen = 0, images = 0;
    for (int first = 0; first < runs; first += 32) {
        const int i = first + lane;
        PromptTile run{};
        if (i < runs) {
            run.row = p.plan.runs[i];
            run.rows = p.plan.runs[i + 1] - run.row;
            const LiveRow row = live_row(o.step, o.slots, run.row);
            run.index = row.index, run.slot = row.slot;
            if (!row.present) run.rows = 0;
        }
        const bool is_short = run.rows > 0 && run.rows <= kFewSegment;
        const int few_end = few_seen + inclusive_scan(is_short ? run.rows : 0, lane);
        const bool taken = is_short && few_end <= p.few;
        if (taken)
            for (int j = 0; j < run.rows; ++j) p.plan.few[few_end - run.rows + j] = run.row + j;
        few = max(few, __reduce_max_sync(kWholeWarp, taken ? few_end : 0));
        few_seen = __shfl_sync(kWholeWarp, few_end, 31);
        const int mine = taken ? 0 : (run.rows + p.tile_rows - 1) / p.tile_rows;
        const int end = tiles + inclusive_scan(mine, lane), keys = run.index + run.rows;
        const int pages = mine ? (keys + kPageTokens - 1) / kPageTokens : 0;
        const int images_end = images + inclusive_scan(pages, lane);
        run.image = min(images_end - pages, p.images_most);
        run.images = min(images_end, p.images_most) - run.image;
        for (int j = 0; j < mine; ++j) {
            PromptTile tile = run;
            const int at = j * p.tile_rows;
            tile.row += at, tile.index += at, tile.rows = min(p.tile_rows, run.rows - at);
            p.plan.found[end - mine + j] = tile;
        }
        for (int i = 0; i < 32; ++i) {  // a run at a time, by all lanes
            const int slot = __shfl_sync(kWholeWarp, run.slot, i), total = __shfl_sync(kWholeWarp, keys, i);
            const int base = __shfl_sync(kWholeWarp, run.image, i);
            const int count = __shfl_sync(kWholeWarp, run.images, i);
            for (int page = lane; page < count; page += 32)
                p.plan.pages[base + page] = {slot, page, total - page * kPageTokens, 0};
        }
        tiles = __shfl_sync(kWholeWarp, end, 31);
        images = min(__shfl_sync(kWholeWarp, images_end, 31), p.images_most);
    }
    if (lane == 0) p.plan.counts[0] = tiles, p.plan.counts[1] = few, p.plan.counts[2] = images;
    return tiles;
}

// Whole block.
__device__ __forceinline__ void plan_prompt(const PromptCall& p) {
    __shared__ int shared_tiles;
    const int runs = find_runs(p.op, p.plan.runs);
    if (threadIdx.x < 32) {
        const int tiles = sort_out_runs(p, runs, threadIdx.x);
        if (threadIdx.x == 0) shared_tiles = tiles;
    }
    __syncthreads();
    const int tiles = shared_tiles;
    for (int i = threadIdx.x; i < tiles; i += kAppendThreads) {
        const PromptTile mine = p.plan.found[i];
        int place = tiles <= kSortMost ? 0 : i;
        for (int j = 0; tiles <= kSortMost && j < tiles; ++j) {
            const PromptTile other = p.plan.found[j];
            const int more = other.index + other.rows - (mine.index + mine.rows);
            place += more > 0 || (more == 0 && j < i);
        }
        p.plan.sorted[place] = mine;
    }
}

// Kernel     attention_append_many: 64 registers, 8320 bytes
template <int kWidth, class Stored>
__global__ void __launch_bounds__(kAppendThreads, 4) attention_append_many(const PromptCall p) {
    constexpr bool kExact = std::is_same_v<Stored, float>;
    __shared__ float shared_head[kAppendWarps][kWidth];
    wait_for_predecessor();
    if (blockIdx.x == 0) return plan_prompt(p);
    const Attention& o = p.op;
    const int r = int(blockIdx.x) - 1, lane = threadIdx.x % 32, heads = o.heads, groups = o.kv.heads;
    const LiveRow row = live_row(o.step, o.slots, r);
    if (!row.present) {
        float* y = o.y.row(r);
        for (int i = threadIdx.x; i < heads * kWidth; i += kAppendThreads) y[i] = 0;
        return;
    }
    const auto input = [&](int unit) {
        return unit < heads            ? o.q.row(r) + int64_t(unit) * kWidth * (o.gated ? 2 : 1)
               : unit < heads + groups ? o.k.row(r) + int64_t(unit - heads) * kWidth
                                       : o.v.row(r) + int64_t(unit - heads - groups) * kWidth;
    };
    float* head = shared_head[threadIdx.x / 32];
    const int32_t* pages = o.slots.pages(row.slot);
    const int units = heads + 2 * groups;
    int unit = threadIdx.x / 32;
    float ahead[kWidth / 32];
    if (unit < units) load_head<kWidth>(ahead, input(unit), lane);
    const Turn<kWidth> turn = turn_at<kWidth>(o.rope, row.position, lane);
    for (; unit < units; unit += kAppendWarps) {
        float values[kWidth / 32], gain[kWidth / 32] = {};
#pragma unroll
        for (int j = 0; j < kWidth / 32; ++j) values[j] = ahead[j];
        if (unit + kAppendWarps < units) load_head<kWidth>(ahead, input(unit + kAppendWarps), lane);
        const bool is_query = unit < heads;
        if (unit >= heads + groups) {
            Stored* to = kv_at<Stored>(o.kv, pages, row.index, 1, unit - heads - groups);
#pragma unroll
            for (int j = 0; j < kWidth / 32; ++j) to[j * 32 + lane] = Stored(values[j]);
            continue;
        }
        const float* norm = static_cast<const float*>(is_query ? o.q_norm.data : o.k_norm.data);
        if (norm) load_head<kWidth>(gain, norm, lane);
        prepare_head<kWidth>(values, norm != nullptr, gain, o.eps, o.rope, turn, head, lane);
        if (is_query) {
            const int64_t at = int64_t(r) * heads + unit;
            lay_query<kWidth, kExact>(p.queries + at * kWidth * (kExact ? 4 : 2), p.query_factor + at, head,
                                      o.scale * 1.4426950408889634f, lane);
        } else {
            Stored* to = kv_at<Stored>(o.kv, pages, row.index, 0, unit - heads);
#pragma unroll
            for (int j = 0; j < kWidth / 32; ++j) to[j * 32 + lane] = Stored(head[j * 32 + lane]);
        }
        __syncwarp();
    }
}

}  // namespace sparkinfer::cuda
