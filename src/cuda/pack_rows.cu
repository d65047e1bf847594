#include "cuda/pack_rows.h"

#include "cuda/lib/math.cuh"
#include "cuda/lib/pdl.cuh"
#include "cuda/lib/reduce.cuh"
#include "cuda/lib/slab_half.cuh"

namespace sparkinfer::cuda {
namespace {

struct Pack {
    RowSource from;
    PackedRows to;
    const int32_t* place;  // [rows, each] or null
    int32_t each;
    double inverse_columns;
    bool aligned, norm_aligned;  // all source rows, to 16 bytes
};

// Eight columns of a row, before the norm.
struct Eight {
    float v[8];
};
__device__ __forceinline__ void load_eight(Eight& e, const float* x, bool aligned) {
    if (aligned) {
        const float4 a = *reinterpret_cast<const float4*>(x), b = *reinterpret_cast<const float4*>(x + 4);
        e = {{a.x, a.y, a.z, a.w, b.x, b.y, b.z, b.w}};
    } else {
#pragma unroll
        for (int i = 0; i < 8; ++i) e.v[i] = x[i];
    }
}

template <int kThreads>
__device__ __forceinline__ double row_sum(double v, double* part) {
    return kThreads == 32 ? warp_sum(v) : block_sum(v, part);
}
template <int kThreads>
__device__ __forceinline__ float row_max(float v, float* part) {
    return kThreads == 32 ? warp_max(v) : block_max(v, part, 0.0f);
}

template <int kThreads>
HD constexpr int pack_block() {
    return kThreads == 32 ? 256 : kThreads;  // a row a warp, or a row a block
}
// kThreads: of a row. A first pass for the norm, one for the greatest value, one that writes; what was read
// stays in registers where a row has no more than kKept · 8 columns a thread.
// Kernel     pack: 128 registers, 384 bytes
template <int kThreads, int kKept>
__global__ void __launch_bounds__(pack_block<kThreads>()) pack(const Pack p) {
    __shared__ double part_sum[32];
    __shared__ float part_max[32];
    wait_for_predecessor();
    let_successor_start();
    const RowSource& f = p.from;
    const int r = blockIdx.x * (pack_block<kThreads>() / kThreads) + threadIdx.x / kThreads,
              own = threadIdx.x % kThreads;
    if (r >= f.rows) return;  // whole warps, and whole blocks where a block has one row
    const int source = f.gather ? f.gather[r] : r, chunks = f.columns / 8;
    const float* x = f.x + source / f.inner * f.x_stride + source % f.inner * f.inner_stride;
    const float* up = f.up ? f.up + source * f.up_stride : nullptr;
    Eight kept[kKept];
    const auto get = [&](int c, Eight& e) {
        load_eight(e, x + 8 * c, p.aligned);
        if (!up) return;
        Eight u;
        load_eight(u, up + 8 * c, p.aligned);
#pragma unroll
        for (int i = 0; i < 8; ++i) e.v[i] = activate(f.activation, e.v[i]) * u.v[i];
    };
    float scale = 1;
#pragma unroll
    for (int i = 0; i < kKept; ++i)
        if (own + i * kThreads < chunks) get(own + i * kThreads, kept[i]);
    const auto normalise = [&](int c, Eight& e) {
        Eight gain;
        load_eight(gain, f.norm + 8 * c, p.norm_aligned);
#pragma unroll
        for (int i = 0; i < 8; ++i) e.v[i] = e.v[i] * scale * gain.v[i];
    };
    bool normed = false;
    const auto each_chunk = [&](auto&& body) {
#pragma unroll
        for (int i = 0; i < kKept; ++i)
            if (own + i * kThreads < chunks) body(own + i * kThreads, kept[i]);
        for (int c = own + kKept * kThreads; c < chunks; c += kThreads) {
            Eight e;
            get(c, e);
            if (normed) normalise(c, e);
            body(c, e);
        }
    };
    if (f.norm) {
        double sum = 0;
        each_chunk([&](int, const Eight& e) {
#pragma unroll
            for (int i = 0; i < 8; ++i) sum += double(e.v[i]) * double(e.v[i]);
        });
        sum = row_sum<kThreads>(sum, part_sum);
        scale = inverse_root(sum * p.inverse_columns + double(f.eps));
#pragma unroll
        for (int i = 0; i < kKept; ++i)
            if (own + i * kThreads < chunks) normalise(own + i * kThreads, kept[i]);
        normed = true;
    }
    float most = 0;
    each_chunk([&](int, const Eight& e) {
#pragma unroll
        for (int i = 0; i < 8; ++i) most = fmaxf(most, fabsf(e.v[i]));
    });
    most = row_max<kThreads>(most, part_max);
    // 2^power takes `most` into [2^14, 2^15); subnormal rows stay as small as they are.
    const int exponent = int(__float_as_uint(most) >> 23 & 255) - 127;
    const int power = exponent == 128 ? 0 : min(14 - exponent, 126);
    const bool absent = f.present && f.present[int64_t(r) * f.present_stride] < 0;
    const float by = power_of_two(power);
    float undo = power_of_two(-power);
    if (f.weight) undo *= sigmoid(f.weight[r * f.weight_stride]);
    const int32_t* places = p.place ? p.place + int64_t(r) * p.each : nullptr;
    each_chunk([&](int c, const Eight& e) {
        uint4 word;
        uint32_t* w = &word.x;
#pragma unroll
        for (int i = 0; i < 4; ++i) w[i] = absent ? 0 : half2_of(e.v[2 * i] * by, e.v[2 * i + 1] * by);
        for (int j = 0; j < p.each; ++j) {
            const int to = places ? places[j] : r;
            if (to >= 0) *reinterpret_cast<uint4*>(p.to.data + p.to.chunk_at(to, c)) = word;
        }
    });
    for (int j = own; j < p.each; j += kThreads) {
        const int to = places ? places[j] : r;
        if (to >= 0) p.to.factor[to] = absent ? 0.0f : undo;
    }
}

struct Spread {
    PackedRows from, to;
    const int32_t* place;  // [rows, each]
    int32_t rows, each;
};
// Packed rows to the places of their pairs, a row a warp.
// Kernel     spread: 80 registers
__global__ void __launch_bounds__(256) spread(const Spread p) {
    constexpr int kKept = 8;
    wait_for_predecessor();
    let_successor_start();
    const int r = blockIdx.x * 8 + threadIdx.x / 32, lane = threadIdx.x % 32, chunks = p.from.columns / 8;
    if (r >= p.rows) return;
    const int32_t* places = p.place + int64_t(r) * p.each;
    const float factor = p.from.factor[r];
#pragma unroll 1
    for (int first = lane; first < chunks; first += 32 * kKept) {
        uint4 v[kKept];
#pragma unroll
        for (int i = 0; i < kKept; ++i)
            if (first + 32 * i < chunks)
                v[i] = *reinterpret_cast<const uint4*>(p.from.data + p.from.chunk_at(r, first + 32 * i));
#pragma unroll 1
        for (int j = 0; j < p.each; ++j) {
            const int to = places[j];
            if (to < 0) continue;
#pragma unroll
            for (int i = 0; i < kKept; ++i)
                if (first + 32 * i < chunks)
                    *reinterpret_cast<uint4*>(p.to.data + p.to.chunk_at(to, first + 32 * i)) = v[i];
        }
    }
    for (int j = lane; j < p.each; j += 32)
        if (places[j] >= 0) p.to.factor[places[j]] = factor;
}

bool aligned(const void* p, int64_t stride) {
    return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride % 4 == 0;
}

PackedRows packed_scratch(Lowering& l, int32_t rows, int32_t columns) {
    PackedRows to{};
    to.padded = (rows + kPackRows - 1) / kPackRows * kPackRows;
    to.columns = (columns + kPackColumns - 1) / kPackColumns * kPackColumns;
    to.data = l.scratch<std::byte>(to.plane_bytes() + kPackSlack * 128);
    to.factor = l.scratch<float>(to.padded + kPackSlack);
    return to;
}
PackedRows add_pack(Lowering& l, const RowSource& source, int32_t rows, const int32_t* place, int32_t each) {
    const PackedRows to = packed_scratch(l, rows, source.columns);
    const Pack p{source,
                 to,
                 place,
                 each,
                 1.0 / double(source.columns),
                 aligned(source.x, source.x_stride) && source.inner_stride % 4 == 0 &&
                     (!source.up || aligned(source.up, source.up_stride)),
                 aligned(source.norm, 0)};
    const auto add = [&](auto kernel, int32_t threads) {
        const int32_t rows = threads == 32 ? 8 : 1;  // of a block
        l.add(kernel, dim3(unsigned(source.rows + rows - 1) / unsigned(rows)), dim3(unsigned(threads * rows)),
              0, p, "pack");
    };
    // A warp a row keeps most in flight; a block a row takes less time for few rows.
    const int32_t chunks = source.columns / 8;
    if (chunks <= 128)
        add(pack<32, 4>, 32);
    else if (chunks <= 256 && source.rows >= kManyRows)
        add(pack<32, 8>, 32);
    else if (chunks <= 256)
        add(pack<256, 1>, 256);
    else if (chunks <= 768)
        add(pack<256, 3>, 256);
    else
        add(pack<512, 5>, 512);
    return to;
}

}  // namespace

RowSource rows_of(const Tensor& x) {
    return {static_cast<const float*>(x.data), x.stride, x.rows(), int32_t(x.cols())};
}
RowSource normed_rows_of(const Tensor& x, const Weight& norm, float eps) {
    RowSource s = rows_of(x);
    s.norm = static_cast<const float*>(norm.data);
    s.eps = eps;
    return s;
}

PackedRows pack_rows(Lowering& l, const RowSource& source) {
    return add_pack(l, source, source.rows, nullptr, 1);
}
PackedRows pack_places(Lowering& l, const RowSource& source, const ExpertOrder& order, int32_t each) {
    return add_pack(l, source, order.places, order.place, each);
}
PackedRows spread_places(Lowering& l, const PackedRows& from, int32_t rows, const ExpertOrder& order,
                         int32_t each) {
    const PackedRows to = packed_scratch(l, order.places, from.columns);
    l.add(spread, dim3(unsigned(rows + 7) / 8), dim3(256), 0, {from, to, order.place, rows, each}, "spread");
    return to;
}

}  // namespace sparkinfer::cuda
