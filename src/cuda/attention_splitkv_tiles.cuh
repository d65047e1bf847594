// attention_splitkv_tiles.cuh — what a warp of attention_splitkv.cuh does with its tiles of keys and values.
// BF16: tiles of 16 tokens come through a ring of 8-token pieces by cp.async, the first before the wait. On
// mma.m16n8k16, queries and probabilities as sums of two BF16: S = {q high; q low} [16, d] · Kᵀ, then
// yᵀ = Vᵀ · {p high}ᵀ + Vᵀ · {p low}ᵀ, whose operand P lies in the lanes as S left it.
// FP8 (E4M3): the same with FP16 in place of BF16, which holds every E4M3 value. A lane's four bytes of keys
// are two neighbouring pairs of columns, and its two values of one token lie in rows g and g + 8: only the
// places of queries and sums tell of it.
// F32: tiles of 4 tokens, straight from the pages, on FMAs.
#pragma once
#include <type_traits>

#include "cuda/attention_heads.cuh"
#include "cuda/lib/copy.cuh"
#include "cuda/lib/mma_bf16.cuh"

namespace sparkinfer::cuda {

constexpr int kSplitCluster = 8;   // blocks of a cluster
constexpr int kSplitHeads = 8;     // query heads of a kv head: the n of the matrix products
constexpr int kSplitRows = 8;      // rows of a step
constexpr int kSplitBlocks = 128;  // blocks a long row spreads over, all kv heads together
static_assert(kSplitHeads <= kSplitCluster, "block j of a cluster merges head j");

// Ring pieces a warp holds: what fits twice in an SM's 228 KB, or once in 99 KB.
HD constexpr int split_pieces(int major) { return 4; }
#if defined(__CUDA_ARCH__)
constexpr int kSplitPieces = split_pieces(__CUDA_ARCH__ / 100);
#else
constexpr int kSplitPieces = split_pieces(9);
#endif

template <int kHeadWidth, class StoredType>
struct SplitShape {
    using Stored = StoredType;
    static constexpr int kWidth = kHeadWidth;
    static constexpr bool kMma = !std::is_same_v<Stored, float>, kFp8 = sizeof(Stored) == 1;
    static constexpr int kWarps = kMma && kWidth == 256 ? 4 : 8, kThreads = kWarps * 32;
    static constexpr int kColumns = kWidth > kThreads ? kWidth / kThreads : 1;  // of a head, a thread: 1 or 2
    static constexpr int kMinBlocks = kWarps == 4 ? 3 : kMma ? 2 : 1;  // an SM: ≤ 168, 128, 255 registers
    using Run = std::conditional_t<kColumns == 2, float2, float>;
    static constexpr int kTile = kMma ? 16 : 4;                     // tokens
    static constexpr int kRowBytes = kWidth * int(sizeof(Stored));  // of a token in a page
    static constexpr int kTokenBytes =
        kRowBytes + 16;  // in the ring: 16 apart, so that ldmatrix meets no conflict
    static constexpr int kPieceBytes = 8 * kTokenBytes;  // 8 tokens
    static constexpr int kOutRow = kWidth + 4;           // floats from head to head of a warp's result
    static constexpr int kOutBytes = kSplitHeads * kOutRow * 4;  // lies over the warp's ring
    static constexpr int kPartFloats = kWidth + 4;  // {max, sum, -, -, values} of a (row, head, cluster)
    static_assert(kOutBytes <= 4 * kPieceBytes || !kMma, "a warp's result must fit in its ring");

    HD static constexpr int warp_bytes(int pieces) { return kMma ? pieces * kPieceBytes : kOutBytes; }
    HD static constexpr int queries_at(int pieces) { return kWarps * warp_bytes(pieces); }
    HD static constexpr int inbox_at(int pieces) { return queries_at(pieces) + kSplitHeads * kWidth * 4; }
    HD static constexpr int fresh_at(int pieces) { return inbox_at(pieces) + kSplitCluster * kWidth * 4; }
    HD static constexpr int softmax_at(int pieces) {
        return fresh_at(pieces) + 2 * kSplitRows * kWidth * int(sizeof(Stored));
    }
    HD static constexpr int shared_bytes(int pieces) {
        return softmax_at(pieces) + (kWarps + 1) * kSplitHeads * 8 + 16;
    }
};

// Shared memory of a block.
template <class S>
struct SplitShared {
    std::byte* warp;   // this warp's ring, later its result [8, kOutRow]
    std::byte* warps;  // of warp 0
    float* queries;    // MMA: fragments [d/16, 32 lanes, 4 words]; else [8, d]
    float* inbox;      // [8 blocks, d]; before the queries are ready: [kWarps, d] heads in the making
    typename S::Stored* fresh;  // [8 keys, then 8 values, d]
    float2* softmax;            // [kWarps, 8] {max, sum}
    float2* inbox_softmax;      // [8 blocks]
    int* last;
    __device__ SplitShared(std::byte* base, int w) {
        warps = base;
        warp = base + w * S::warp_bytes(kSplitPieces);
        queries = reinterpret_cast<float*>(base + S::queries_at(kSplitPieces));
        inbox = reinterpret_cast<float*>(base + S::inbox_at(kSplitPieces));
        fresh = reinterpret_cast<typename S::Stored*>(base + S::fresh_at(kSplitPieces));
        softmax = reinterpret_cast<float2*>(base + S::softmax_at(kSplitPieces));
        inbox_softmax = softmax + S::kWarps * kSplitHeads;
        last = reinterpret_cast<int*>(inbox_softmax + kSplitCluster);
    }
};

// live_row through L2 only: read before the wait, lines that L1 may still hold are not trusted.
__device__ __forceinline__ LiveRow settled_row(const StepView& step, const SlotsView& slots, int r) {
    const StepHeader* h = reinterpret_cast<const StepHeader*>(step.base);
    if (r >= __ldcg(&h->rows)) return {false, 0, 0, 0, {0, 0, 0}};
    const int4* at = reinterpret_cast<const int4*>(step.base + __ldcg(&h->rows_at)) + 2 * r;
    const int4 a = __ldcg(at),
               b = __ldcg(at + 1);  // {token, slot, index, position[0]}, {position[1], [2], flags, target}
    if (!(uint32_t(b.z) & kRowFromCursor)) return {true, a.x, a.y, a.z, {a.w, b.x, b.y}};
    const int4* cursor = reinterpret_cast<const int4*>(slots.base + a.y * slots.stride);
    const int4 c = __ldcg(cursor);  // {next_token, index, generated, limit}
    const int stopped = __ldcg(&cursor[1].x);
    return {stopped == 0, c.x, a.y, c.y, {c.y, c.y, c.y}};
}
static_assert(offsetof(Row, position) == 12 && offsetof(Row, flags) == 24);
static_assert(offsetof(Slot, cursor) == 0 && offsetof(Cursor, index) == 4 && offsetof(Cursor, stopped) == 16);

// A row, the step's other rows of its sequence, and this block's share of the keys.
struct SplitRow {
    LiveRow mine;  // row `lane` of the step
    LiveRow row;   // the block's row
    uint32_t fresh =
        0;  // rows of the step whose keys it sees, itself included: consecutive indices from old_end
    int old_end = 0;                       // keys below it are in the pages
    int clusters = 0, begin = 0, end = 0;  // clusters at work; tiles of this block

    template <class S>
    static __device__ SplitRow find(const Attention& o, int r, int lane, int most_clusters) {
        SplitRow s;
        s.mine = lane < o.y.rows() ? settled_row(o.step, o.slots, lane) : LiveRow{};
        s.row.present = __shfl_sync(kWholeWarp, s.mine.present, r);
        s.row.slot = __shfl_sync(kWholeWarp, s.mine.slot, r);
        s.row.index = __shfl_sync(kWholeWarp, s.mine.index, r);
#pragma unroll
        for (int a = 0; a < 3; ++a) s.row.position[a] = __shfl_sync(kWholeWarp, s.mine.position[a], r);
        const bool seen = s.mine.present && s.mine.slot == s.row.slot && s.mine.index <= s.row.index;
        s.fresh = __ballot_sync(kWholeWarp, seen);
        s.old_end = __reduce_min_sync(kWholeWarp, seen ? s.mine.index : s.row.index);
        s.template share<S>(blockIdx.x, most_clusters);
        return s;
    }
    // What block `b` of the row's clusters has to do.
    template <class S>
    __device__ __forceinline__ void share(int b, int most_clusters) {
        const int tiles = row.index / S::kTile + 1, cluster_tiles = kSplitCluster * S::kWarps;
        clusters = min((tiles + cluster_tiles - 1) / cluster_tiles, most_clusters);
        const int blocks = clusters * kSplitCluster;
        b = min(b, blocks);
        begin = int(int64_t(b) * tiles / blocks);
        end = int(int64_t(min(b + 1, blocks)) * tiles / blocks);
    }
    // The fresh row that a warp makes the key of: the `n`th whose key this block needs; -1: none.
    template <class S>
    __device__ int fresh_row(int n) const {
        const int tile = mine.index / S::kTile;
        uint32_t needed = fresh & __ballot_sync(kWholeWarp, tile >= begin && tile < end);
        for (; n > 0 && needed; --n) needed &= needed - 1;
        return __ffs(int(needed)) - 1;
    }
};

// One warp's ring of 8-token pieces, in the order of their use: of each tile K first and second half, V first
// and second.
template <class S>
struct SplitRing {
    uint32_t base;  // shared address
    const int32_t* pages;
    const std::byte* kv;  // K of this kv head in page 0
    int64_t page_bytes;
    int part_bytes;  // from K to V
    int first, end, old_end, lane;
    int next = 0, into = 0, from = 0;  // pieces asked for; ring places of the next one and of the oldest
    int page = 0;                      // of the warp's tile (next / 4) & ~31 + lane

    __device__ __forceinline__ void ask() {
        const int k = next >> 2, tile = first + k * S::kWarps;
        if ((next & 127) == 0) {
            const int t = tile + lane * S::kWarps;
            page = t < end ? __ldcg(pages + t * S::kTile / kPageTokens) : 0;
        }
        if (tile < end) {
            const int token = tile * S::kTile + (next & 1) * 8;
            const std::byte* source = kv + __shfl_sync(kWholeWarp, page, k & 31) * page_bytes +
                                      (next & 2 ? part_bytes : 0) + token % kPageTokens * S::kRowBytes;
            const uint32_t to = base + into * S::kPieceBytes;
#pragma unroll
            for (int i = 0; i < S::kRowBytes / 64; ++i) {
                const int chunk = i * 32 + lane, row = chunk / (S::kRowBytes / 16),
                          column = chunk % (S::kRowBytes / 16);
                async_copy16(to + row * S::kTokenBytes + column * 16, source + chunk * 16,
                             token + row < old_end);
            }
        }
        async_commit();
        ++next;
        into = into + 1 == kSplitPieces ? 0 : into + 1;
    }
    // Shared addresses of the two oldest pieces, arrived for the whole warp.
    __device__ __forceinline__ void take(uint32_t (&piece)[2]) {
        async_wait<kSplitPieces - 2>();
        __syncwarp();
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            piece[i] = base + from * S::kPieceBytes;
            from = from + 1 == kSplitPieces ? 0 : from + 1;
        }
    }
    // Gives both back and asks for two more.
    __device__ __forceinline__ void give_back() {
        __syncwarp();
        ask();
        ask();
    }
};

// Puts the fresh keys (or values) among the 8 tokens from `token` on into a piece, where zeros were.
template <class S>
__device__ __forceinline__ void insert_fresh(uint32_t piece, const typename S::Stored* fresh, int token,
                                             int old_end, int index, int lane) {
    if (token + 8 <= old_end) return;
    for (int t = max(token, old_end); t < token + 8 && t <= index; ++t)
        if (lane < S::kRowBytes / 16) {
            const uint4 v = reinterpret_cast<const uint4*>(fresh + (t - old_end) * S::kWidth)[lane];
            store_shared16(piece + (t - token) * S::kTokenBytes + lane * 16, v);
        }
    __syncwarp();
}

// The warp's tiles in BF16 or FP8. Lane 4·g + c holds scores of head g for tokens 2c, 2c + 1, 8 + 2c, 9 + 2c
// of a tile, and sums of heads 2c, 2c + 1 for values 16·m + g and 16·m + 8 + g; FP8: 16·m + 2g and 16·m + 2g
// + 1.
template <class S>
struct SplitMma {
    float y[S::kWidth / 16][4] = {};
    float most = -INFINITY, sum = 0;

    __device__ __forceinline__ void scores(float (&s)[4], const uint32_t (&piece)[2], const float* queries,
                                           int lane) {
        float d[2][2][4] = {};  // [tokens of piece 0 or 1][even and odd steps]
        const uint32_t at = lane % 8 * S::kTokenBytes + lane / 8 * 16;
        const uint4* q = reinterpret_cast<const uint4*>(queries) + lane;
        if constexpr (S::kFp8) {
#pragma unroll 1
            for (int k = 0; k < S::kWidth / 16; k += 4) {
                uint32_t b[2][4];
                load_matrices(b[0], piece[0] + at + k * 16);
                load_matrices(b[1], piece[1] + at + k * 16);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const uint4 v = q[(k + i) * 32];
                    const uint32_t a[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
                    for (int n = 0; n < 2; ++n) {
                        const uint2 key = e4m3_to_f16(b[n][i]);
                        mma_f16(d[n][i % 2], a, key.x, key.y);
                    }
                }
            }
        } else {
#pragma unroll 4
            for (int k = 0; k < S::kWidth / 16; k += 2) {
                const uint4 q0 = q[k * 32], q1 = q[(k + 1) * 32];
                const uint32_t a0[4] = {q0.x, q0.y, q0.z, q0.w}, a1[4] = {q1.x, q1.y, q1.z, q1.w};
#pragma unroll
                for (int n = 0; n < 2; ++n) {
                    uint32_t b[4];
                    load_matrices(b, piece[n] + at + k * 32);
                    mma_bf16(d[n][0], a0, b[0], b[1]);
                    mma_bf16(d[n][1], a1, b[2], b[3]);
                }
            }
        }
#pragma unroll
        for (int n = 0; n < 2; ++n)
#pragma unroll
            for (int e = 0; e < 2; ++e)
                s[n * 2 + e] =
                    (d[n][0][e] + d[n][1][e]) + (d[n][0][2 + e] + d[n][1][2 + e]);  // q high + q low
    }
    // Turns scores into probabilities relative to the new maximum, and all sums with them.
    __device__ __forceinline__ void soften(float (&s)[4], int token, int index, int lane) {
        float top = most;
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            if (token + i / 2 * 8 + lane % 4 * 2 + i % 2 > index) s[i] = -INFINITY;
            top = fmaxf(top, s[i]);
        }
        top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 1));
        top = fmaxf(top, __shfl_xor_sync(kWholeWarp, top, 2));
        const float keep = exp2f(most - top);
        most = top;
#pragma unroll
        for (int i = 0; i < 4; ++i) s[i] = exp2f(s[i] - top);
        sum = sum * keep + ((s[0] + s[1]) + (s[2] + s[3]));
        const float keep0 = __shfl_sync(kWholeWarp, keep, lane % 4 * 8),
                    keep1 = __shfl_sync(kWholeWarp, keep, lane % 4 * 8 + 4);
        if (!__any_sync(kWholeWarp, keep != 1.0f)) return;
#pragma unroll
        for (int m = 0; m < S::kWidth / 16; ++m)
            y[m][0] *= keep0, y[m][1] *= keep1, y[m][2] *= keep0, y[m][3] *= keep1;
    }
    __device__ __forceinline__ void values(const float (&p)[4], const uint32_t (&piece)[2], int lane) {
        uint32_t high[2], low[2];
        const uint32_t at = (lane < 16 ? piece[0] : piece[1]) + lane % 8 * S::kTokenBytes + lane / 8 % 2 * 16;
        if constexpr (S::kFp8) {
            split_f16(p[0], p[1], high[0], low[0]);
            split_f16(p[2], p[3], high[1], low[1]);
#pragma unroll
            for (int m = 0; m < S::kWidth / 16; m += 2) {
                uint32_t r[4];
                load_matrices_transposed(r, at + m * 16);
#pragma unroll
                for (int j = 0; j < 2; ++j) {
                    const uint2 first = e4m3_to_f16(__byte_perm(r[j], 0, 0x3120)),
                                last = e4m3_to_f16(__byte_perm(r[2 + j], 0, 0x3120));
                    const uint32_t a[4] = {first.x, first.y, last.x, last.y};
                    mma_f16(y[m + j], a, high[0], high[1]);
                    mma_f16(y[m + j], a, low[0], low[1]);
                }
            }
            return;
        }
        split_bf16(p[0], p[1], high[0], low[0]);
        split_bf16(p[2], p[3], high[1], low[1]);
#pragma unroll
        for (int m = 0; m < S::kWidth / 16; ++m) {
            uint32_t a[4];
            load_matrices_transposed(a, at + m * 32);
            mma_bf16(y[m], a, high[0], high[1]);
            mma_bf16(y[m], a, low[0], low[1]);
        }
    }
    __device__ __forceinline__ void run(SplitRing<S>& ring, const SplitRow& r, const SplitShared<S>& shared) {
        for (int tile = ring.first; tile < ring.end; tile += S::kWarps) {
            const int token = tile * S::kTile;
            uint32_t piece[2];
            float s[4];
            ring.take(piece);
#pragma unroll
            for (int i = 0; i < 2; ++i)
                insert_fresh<S>(piece[i], shared.fresh, token + i * 8, r.old_end, r.row.index, ring.lane);
            scores(s, piece, shared.queries, ring.lane);
            ring.give_back();
            soften(s, token, r.row.index, ring.lane);
            ring.take(piece);
            const typename S::Stored* fresh = shared.fresh + kSplitRows * S::kWidth;
#pragma unroll
            for (int i = 0; i < 2; ++i)
                insert_fresh<S>(piece[i], fresh, token + i * 8, r.old_end, r.row.index, ring.lane);
            values(s, piece, ring.lane);
            ring.give_back();
        }
    }
    // out [8, kOutRow], softmax [8]
    __device__ __forceinline__ void store(float* out, float2* softmax, int lane) {
        sum += __shfl_xor_sync(kWholeWarp, sum, 1);
        sum += __shfl_xor_sync(kWholeWarp, sum, 2);
        const int g = lane / 4, c = lane % 4;
        if (c == 0) softmax[g] = {most, sum};
        constexpr int kFirst = S::kFp8 ? 2 : 1, kSecond = S::kFp8 ? 1 : 8;
        float *y0 = out + 2 * c * S::kOutRow + kFirst * g, *y1 = y0 + S::kOutRow;
#pragma unroll
        for (int m = 0; m < S::kWidth / 16; ++m) {
            y0[m * 16] = y[m][0], y1[m * 16] = y[m][1];
            y0[m * 16 + kSecond] = y[m][2], y1[m * 16 + kSecond] = y[m][3];
        }
    }
};

// The warp's tiles in F32. A lane owns kLane neighbouring columns of every 32·kLane.
template <class S>
struct SplitFma {
    static constexpr int kLane = S::kWidth >= 128 ? 4 : 2, kRuns = S::kWidth / 32 / kLane;
    using Run = std::conditional_t<kLane == 4, float4, float2>;
    float y[kSplitHeads][S::kWidth / 32] = {};
    float most[kSplitHeads], sum[kSplitHeads] = {};

    static __device__ __forceinline__ void load(float (&x)[S::kWidth / 32], const float* from, int lane) {
#pragma unroll
        for (int j = 0; j < kRuns; ++j) {
            const Run v = reinterpret_cast<const Run*>(from)[j * 32 + lane];
            const float* e = reinterpret_cast<const float*>(&v);
#pragma unroll
            for (int i = 0; i < kLane; ++i) x[j * kLane + i] = e[i];
        }
    }
    __device__ __forceinline__ void token(const float* k, const float* v, const float* queries, int group,
                                          int lane) {
        float key[S::kWidth / 32], value[S::kWidth / 32];
        load(key, k, lane);
        load(value, v, lane);
#pragma unroll
        for (int h = 0; h < kSplitHeads; ++h) {
            if (h >= group) break;
            float query[S::kWidth / 32], dot = 0;
            load(query, queries + h * S::kWidth, lane);
#pragma unroll
            for (int i = 0; i < S::kWidth / 32; ++i) dot += query[i] * key[i];
            dot = warp_sum(dot);
            const float top = fmaxf(most[h], dot), keep = exp2f(most[h] - top), e = exp2f(dot - top);
            sum[h] = sum[h] * keep + e;
            most[h] = top;
#pragma unroll
            for (int i = 0; i < S::kWidth / 32; ++i) y[h][i] = y[h][i] * keep + e * value[i];
        }
    }
    __device__ __forceinline__ void run(const Attention& o, const SplitRow& r, const SplitShared<S>& shared,
                                        int g, int warp, int lane) {
#pragma unroll
        for (int h = 0; h < kSplitHeads; ++h) most[h] = -INFINITY;
        const int32_t* pages = o.slots.pages(r.row.slot);
        for (int tile = r.begin + warp; tile < r.end; tile += S::kWarps)
            for (int t = tile * S::kTile; t < (tile + 1) * S::kTile && t <= r.row.index; ++t) {
                const float* fresh = shared.fresh + (t - r.old_end) * S::kWidth;
                const bool old = t < r.old_end;
                token(old ? kv_at<float>(o.kv, pages, t, 0, g) : fresh,
                      old ? kv_at<float>(o.kv, pages, t, 1, g) : fresh + kSplitRows * S::kWidth,
                      shared.queries, o.heads / o.kv.heads, lane);
            }
    }
    __device__ __forceinline__ void store(float* out, float2* softmax, int lane) {
#pragma unroll
        for (int h = 0; h < kSplitHeads; ++h) {
            if (lane == 0) softmax[h] = {most[h], sum[h]};
#pragma unroll
            for (int i = 0; i < S::kWidth / 32; ++i)
                out[h * S::kOutRow + i / kLane * 32 * kLane + lane * kLane + i % kLane] = y[h][i];
        }
    }
};

}  // namespace sparkinfer::cuda
