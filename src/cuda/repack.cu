#include "cuda/repack.h"

#include <cmath>

#include "quant/formats.h"

namespace sparkinfer::cuda {
namespace {

// The fields of a file's blocks, by column of an item of 256.
template <Quant>
struct Source;

template <class Block, bool kFifth>
struct SourceK {
    static __device__ const Block& at(const std::byte* row, int item) { return block_at<Block>(row, item); }
    static __device__ int scale(const Block& b, int column) {
        int s, m;
        k_scale_min(b.scales, column / 32, &s, &m);
        return s;
    }
    static __device__ int minimum(const Block& b, int column) {
        int s, m;
        k_scale_min(b.scales, column / 32, &s, &m);
        return m;
    }
    static __device__ int code(const Block& b, int column) {
        const int low = b.qs[32 * (column / 64) + column % 32] >> (4 * (column / 32 % 2)) & 15;
        if constexpr (kFifth)
            return low | (b.qh[column % 32] >> (column / 32) & 1) << 4;
        else
            return low;
    }
};
template <>
struct Source<Quant::q4_k> : SourceK<Format<Quant::q4_k>::Block, false> {};
template <>
struct Source<Quant::q5_k> : SourceK<Format<Quant::q5_k>::Block, true> {};
template <>
struct Source<Quant::q6_k> {
    using Block = Format<Quant::q6_k>::Block;
    static __device__ const Block& at(const std::byte* row, int item) { return block_at<Block>(row, item); }
    static __device__ int code(const Block& b, int column) {
        const int half = column / 128, quarter = column / 32 % 4, l = column % 32;
        return (b.ql[64 * half + 32 * (quarter % 2) + l] >> (4 * (quarter / 2)) & 15) |
               (b.qh[32 * half + l] >> (2 * quarter) & 3) << 4;
    }
};

// Formats of nibbles alone: a row's blocks from an item's first column on.
template <class File>
struct Source32 {
    using Block = typename File::Block;
    static constexpr int kBlocks = kSlabColumns / File::block;
    static __device__ const Block* at(const std::byte* row, int item) {
        return &block_at<Block>(row, int64_t(item) * kBlocks);
    }
    static __device__ int code(const Block* b, int column) {
        const uint8_t* qs = File::block == 32 ? b[column / 32].qs : b->qs + 16 * (column / 32);
        return qs[column % 16] >> (4 * (column / 16 % 2)) & 15;
    }
};
template <>
struct Source<Quant::q4_0> : Source32<Format<Quant::q4_0>> {};
template <>
struct Source<Quant::q4_1> : Source32<Format<Quant::q4_1>> {};
template <>
struct Source<Quant::iq4_xs> : Source32<Format<Quant::iq4_xs>> {};
template <>
struct Source<Quant::mxfp4> : Source32<Format<Quant::mxfp4>> {};

// A fp16 value times 2^power, as fp16 bits; notes when that is not exact.
__device__ uint32_t scaled_half(uint16_t half, int power, int32_t* lossy, bool negate = false) {
    const float wanted = ldexpf(f16_to_f32(half), power);
    const uint16_t stored = f32_to_f16(negate ? -wanted : wanted);
    if (f16_to_f32(stored) != (negate ? -wanted : wanted)) *lossy = 1;
    return stored;
}

template <Quant>
struct SlabOfFile;
template <>
struct SlabOfFile<Quant::q4_0> : Format<Quant::q4_0_slab> {};
template <>
struct SlabOfFile<Quant::q4_1> : Format<Quant::q4_1_slab> {};
template <>
struct SlabOfFile<Quant::iq4_xs> : Format<Quant::iq4_xs_slab> {};
template <>
struct SlabOfFile<Quant::mxfp4> : Format<Quant::mxfp4_slab> {};

struct Rows {
    const std::byte* g[2];  // raw rows g and g+8 of a slab
};
__device__ Rows slab_rows(const Repack& r, int64_t slab, int g, int64_t row_bytes) {
    if (r.second) return {{r.first + (slab * 8 + g) * row_bytes, r.second + (slab * 8 + g) * row_bytes}};
    return {{r.first + (slab * 16 + g) * row_bytes, r.first + (slab * 16 + 8 + g) * row_bytes}};
}

__device__ void store4(std::byte* to, const uint32_t* words) {
    *reinterpret_cast<uint4*>(to) = make_uint4(words[0], words[1], words[2], words[3]);
}
__device__ void store1(std::byte* to, uint32_t word) { *reinterpret_cast<uint32_t*>(to) = word; }

// Codes of one unit and lane: four words of low nibbles, the higher bits beside them.
template <Quant kQuant, class Block>
__device__ void pack_codes(std::byte* unit_at, int unit, int lane, const Block& a, const Block& b) {
    uint32_t word[4] = {}, high[2] = {};
    for (int j = 0; j < 4; ++j)
        for (int i = 0; i < 4; ++i) {
            const int column = 64 * unit + slab_column(lane % 4, j, i);
            const uint32_t x = Source<kQuant>::code(a, column), y = Source<kQuant>::code(b, column);
            word[j] |= (x & 15) << (8 * i) | (y & 15) << (8 * i + 4);
            if (kQuant == Quant::q5_k)
                high[0] |= (x >> 4) << (8 * i + 4 + j) | (y >> 4) << (8 * ((i + 1) & 3) + j);
            if (kQuant == Quant::q6_k)
                high[j >> 1] |=
                    (x >> 4) << (8 * i + 4 + 2 * (j & 1)) | (y >> 4) << (8 * ((i + 1) & 3) + 2 * (j & 1));
        }
    store4(unit_at + 16 * lane, word);
    if (kQuant == Quant::q5_k) store1(unit_at + 512 + 4 * lane, high[0]);
    if (kQuant == Quant::q6_k)
        store1(unit_at + 512 + 8 * lane, high[0]), store1(unit_at + 516 + 8 * lane, high[1]);
}

// One thread: one (slab, item, unit, lane).
// Kernel     repack_k: 48 registers
template <Quant kQuant, Quant kSlab>
__global__ void repack_k(const Repack r) {
    const int64_t id = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    const int lane = id & 31, unit = id >> 5 & 3, items = r.columns / kSlabColumns;
    const int64_t item = id >> 7, slab = item / items;
    if (slab >= r.slabs) return;
    using S = Source<kQuant>;
    using F = Format<kSlab>;
    const int g = lane / 4, t = lane % 4;
    const Rows rows = slab_rows(r, slab, g, int64_t(items) * Format<kQuant>::bytes);
    const auto &a = S::at(rows.g[0], int(item % items)), &b = S::at(rows.g[1], int(item % items));
    std::byte* to = r.to + item * F::item;
    pack_codes<kQuant>(to + F::unit * unit, unit, lane, a, b);
    if (t >= 2) return;
    const auto& own = t ? b : a;
    std::byte* scales = to + F::scales_at + 64 * unit + 8 * g;
    const uint32_t d = scaled_half(own.d, r.powers.d - (t ? 4 : 0), r.lossy);
    if constexpr (kQuant == Quant::q6_k) {
        uint32_t word = 0;  // thread t writes the 32 columns t: {16 of row g, 16 of row g+8, next 16 …}
        for (int i = 0; i < 4; ++i) {
            const auto& from = i & 1 ? b : a;
            word |= uint32_t(from.scales[4 * unit + 2 * t + (i >> 1)] + 128) << (8 * i);
        }
        store1(scales + 4 * t, word);
        if (unit == 0) *reinterpret_cast<uint16_t*>(to + F::d_at + 4 * g + 2 * t) = uint16_t(d);
    } else {
        const uint32_t m = scaled_half(own.dmin, r.powers.m, r.lossy, true);
        const int column = 64 * unit;
        store1(scales + 4 * t, uint32_t(S::scale(own, column)) | uint32_t(S::scale(own, column + 32)) << 6 |
                                   (d >> (4 * unit) & 15) << 12 | uint32_t(S::minimum(own, column)) << 16 |
                                   uint32_t(S::minimum(own, column + 32)) << 22 |
                                   (m >> (4 * unit) & 15) << 28);
    }
}

// Kernel     repack_q8_0: 40 registers
__global__ void repack_q8_0(const Repack r) {
    const int64_t id = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    const int lane = id & 31, unit = id >> 5 & 3, items = r.columns / kSlabColumns;
    const int64_t item = id >> 7, slab = item / items;
    if (slab >= r.slabs) return;
    using File = Format<Quant::q8_0>;
    using F = Format<Quant::q8_0_slab>;
    const int g = lane / 4, t = lane % 4, first = int(item % items) * kSlabColumns + 64 * unit;
    const Rows rows = slab_rows(r, slab, g, int64_t(r.columns) / 32 * File::bytes);
    std::byte* to = r.to + item * F::item + F::unit * unit;
    for (int half = 0; half < 2; ++half) {
        uint32_t word[4] = {};
        for (int w = 0; w < 4; ++w) {
            const auto& block = block_at<File::Block>(rows.g[w & 1], (first + 32 * half) / 32);
            for (int i = 0; i < 4; ++i)
                word[w] |= uint32_t(block.qs[slab_column(t, w >> 1, i)] + 128) << (8 * i);
        }
        store4(to + 512 * half + 16 * lane, word);
    }
    if (t >= 2) return;  // thread t writes the scales of the 32 columns t
    const uint32_t d0 =
        scaled_half(block_at<File::Block>(rows.g[0], (first + 32 * t) / 32).d, r.powers.d, r.lossy);
    const uint32_t d1 =
        scaled_half(block_at<File::Block>(rows.g[1], (first + 32 * t) / 32).d, r.powers.d, r.lossy);
    store1(to + F::scales_in_unit + 8 * g + 4 * t, d0 | d1 << 16);
}

// Thread t of a row pair: the scales of 32 columns, t, of a unit, or (t = 0) those of both.
// Kernel     repack_nibbles: 48 registers
template <Quant kQuant>
__global__ void repack_nibbles(const Repack r) {
    const int64_t id = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    const int lane = id & 31, unit = id >> 5 & 3, items = r.columns / kSlabColumns;
    const int64_t item = id >> 7, slab = item / items;
    if (slab >= r.slabs) return;
    using S = Source<kQuant>;
    using F = SlabOfFile<kQuant>;
    const int g = lane / 4, t = lane % 4, group = 2 * unit + t;
    const Rows rows = slab_rows(r, slab, g, int64_t(items) * S::kBlocks * Format<kQuant>::bytes);
    const auto *a = S::at(rows.g[0], int(item % items)), *b = S::at(rows.g[1], int(item % items));
    std::byte* to = r.to + item * F::item;
    pack_codes<kQuant>(to + F::unit * unit, unit, lane, a, b);
    std::byte* scales = to + F::scales_at;
    if constexpr (kQuant == Quant::q4_0 || kQuant == Quant::q4_1) {
        if (t >= 2) return;
        scales += (kQuant == Quant::q4_0 ? 64 * unit + 8 * g : 128 * unit + 16 * g) + 4 * t;
        store1(scales, scaled_half(a[group].d, r.powers.d, r.lossy) |
                           scaled_half(b[group].d, r.powers.d - 4, r.lossy) << 16);
        if constexpr (kQuant == Quant::q4_1)
            store1(scales + 8, scaled_half(a[group].m, r.powers.m, r.lossy) |
                                   scaled_half(b[group].m, r.powers.m, r.lossy) << 16);
    } else if (t == 0) {
        uint32_t word = 0;
        for (int half = 0; half < 2; ++half) {
            const auto* from = half ? b : a;
            if constexpr (kQuant == Quant::iq4_xs) {
                const uint32_t d = scaled_half(from->d, r.powers.d, r.lossy);
                word |=
                    uint32_t(Format<kQuant>::sub_scale(*from, group) |
                             Format<kQuant>::sub_scale(*from, group + 1) << 6 | (d >> (4 * unit) & 15) << 12)
                    << (16 * half);
            } else {
                const int e = from[group].e, next = from[group + 1].e;
                if (max(e, next) > F::greatest_exponent) *r.lossy = 1;
                word |= uint32_t(e | next << 16) << (8 * half);
            }
        }
        store1(scales + 32 * unit + 4 * g, word);
    }
}

// Kernel     scan: 16 registers
template <Quant kQuant>
__global__ void scan(const std::byte* raw, int64_t blocks, ScaleRange* range) {
    const int64_t i = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
    uint32_t d = 0, m = 0;
    if (i < blocks) {
        const auto& b = block_at<typename Format<kQuant>::Block>(raw, i);
        d = __float_as_uint(fabsf(f16_to_f32(b.d)));
        if constexpr (kQuant == Quant::q4_k || kQuant == Quant::q5_k)
            m = __float_as_uint(fabsf(f16_to_f32(b.dmin)));
        if constexpr (kQuant == Quant::q4_1) m = __float_as_uint(fabsf(f16_to_f32(b.m)));
    }
    d = __reduce_max_sync(0xffffffffu, d);
    m = __reduce_max_sync(0xffffffffu, m);
    if (threadIdx.x % 32 == 0) {
        atomicMax(&range->d, d);
        atomicMax(&range->dmin, m);
    }
}

template <Quant kQuant>
void scan_as(const void* raw, int64_t rows, int32_t columns, ScaleRange* range, cudaStream_t stream) {
    const int64_t blocks = rows * (columns / Format<kQuant>::block);
    scan<kQuant><<<unsigned((blocks + 255) / 256), 256, 0, stream>>>(static_cast<const std::byte*>(raw),
                                                                     blocks, range);
}

}  // namespace

bool slab_of(Quant file, Quant* slab) {
    switch (file) {
        case Quant::q4_k: *slab = Quant::q4_k_slab; return true;
        case Quant::q5_k: *slab = Quant::q5_k_slab; return true;
        case Quant::q6_k: *slab = Quant::q6_k_slab; return true;
        case Quant::q8_0: *slab = Quant::q8_0_slab; return true;
        case Quant::q4_0: *slab = Quant::q4_0_slab; return true;
        case Quant::q4_1: *slab = Quant::q4_1_slab; return true;
        case Quant::iq4_xs: *slab = Quant::iq4_xs_slab; return true;
        case Quant::mxfp4: *slab = Quant::mxfp4_slab; return true;
        default: return false;
    }
}

void scan_scales(const void* raw, int64_t rows, int32_t columns, Quant file, ScaleRange* range,
                 cudaStream_t stream) {
    if (file == Quant::q4_k) scan_as<Quant::q4_k>(raw, rows, columns, range, stream);
    if (file == Quant::q5_k) scan_as<Quant::q5_k>(raw, rows, columns, range, stream);
    if (file == Quant::q6_k) scan_as<Quant::q6_k>(raw, rows, columns, range, stream);
    if (file == Quant::q8_0) scan_as<Quant::q8_0>(raw, rows, columns, range, stream);
    if (file == Quant::q4_0) scan_as<Quant::q4_0>(raw, rows, columns, range, stream);
    if (file == Quant::q4_1) scan_as<Quant::q4_1>(raw, rows, columns, range, stream);
    if (file == Quant::iq4_xs) scan_as<Quant::iq4_xs>(raw, rows, columns, range, stream);
}

// The greatest scale lands in [2^14, 2^15): fp16 then has room for scales 2^24 times smaller before one loses
// a bit.
SlabPowers slab_powers(const ScaleRange& range, Quant file) {
    if (file == Quant::mxfp4) return {1, 0};  // its scales stay as they are, its values are doubled
    const auto power = [](uint32_t bits) {
        float greatest;
        static_assert(sizeof greatest == sizeof bits);
        __builtin_memcpy(&greatest, &bits, sizeof bits);
        return greatest > 0 && std::isfinite(greatest) ? 14 - std::ilogb(greatest) : 0;
    };
    return {power(range.d), power(range.dmin)};
}

void repack(const Repack& r, Quant file, cudaStream_t stream) {
    const int64_t threads = r.slabs * (r.columns / kSlabColumns) * 128;
    const unsigned grid = unsigned((threads + 255) / 256);
    if (file == Quant::q4_k) repack_k<Quant::q4_k, Quant::q4_k_slab><<<grid, 256, 0, stream>>>(r);
    if (file == Quant::q5_k) repack_k<Quant::q5_k, Quant::q5_k_slab><<<grid, 256, 0, stream>>>(r);
    if (file == Quant::q6_k) repack_k<Quant::q6_k, Quant::q6_k_slab><<<grid, 256, 0, stream>>>(r);
    if (file == Quant::q8_0) repack_q8_0<<<grid, 256, 0, stream>>>(r);
    if (file == Quant::q4_0) repack_nibbles<Quant::q4_0><<<grid, 256, 0, stream>>>(r);
    if (file == Quant::q4_1) repack_nibbles<Quant::q4_1><<<grid, 256, 0, stream>>>(r);
    if (file == Quant::iq4_xs) repack_nibbles<Quant::iq4_xs><<<grid, 256, 0, stream>>>(r);
    if (file == Quant::mxfp4) repack_nibbles<Quant::mxfp4><<<grid, 256, 0, stream>>>(r);
}

}  // namespace sparkinfer::cuda
