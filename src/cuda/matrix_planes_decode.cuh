// matrix_planes_decode.cuh — eight weights of one row at a time, as float32: what the defining decoders in
// quant/ say, by words instead of bytes and without branches.
#pragma once
#include "cuda/lib/mma_bf16.cuh"
#include "cuda/linear_generic.cuh"

namespace sparkinfer::cuda {

// Every value of the format, before Weight::scale, is a BF16.
HD constexpr bool planes_single(Quant q) {
    return q == Quant::bf16 || q == Quant::fp8_tensor || q == Quant::mxfp4 || q == Quant::nvfp4 ||
           q == Quant::nvfp4_split || q == Quant::mxfp4_slab;
}

template <int kAlign>
__device__ __forceinline__ uint32_t load_word(const std::byte* p) {
    if constexpr (kAlign % 4 == 0) {
        return __ldg(reinterpret_cast<const uint32_t*>(p));
    } else {
        const auto* half = reinterpret_cast<const uint16_t*>(p);
        return __ldg(half) | uint32_t(__ldg(half + 1)) << 16;
    }
}
template <int kAlign>
__device__ __forceinline__ uint2 load_words(const std::byte* p) {
    return make_uint2(load_word<kAlign>(p), load_word<kAlign>(p + 4));
}
__device__ __forceinline__ uint32_t load_byte(const std::byte* p) {
    return __ldg(reinterpret_cast<const uint8_t*>(p));
}
__device__ __forceinline__ float half_float(uint32_t bits) {
    return __half2float(__ushort_as_half(uint16_t(bits)));
}
__device__ __forceinline__ float load_half(const std::byte* p) {
    return half_float(__ldg(reinterpret_cast<const uint16_t*>(p)));
}

// v = scale · (code − offset) + minimum for the bytes of `codes`.
__device__ __forceinline__ void affine_eight(uint2 codes, float offset, float scale, float minimum,
                                             float (&v)[8]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        // 2^23 + code, put together from bytes.
        const float f = __uint_as_float(__byte_perm(i < 4 ? codes.x : codes.y, 0x4b000000u, 0x7440 + i % 4));
        v[i] = fmaf(scale, f - (8388608.0f + offset), minimum);
    }
}

// The low or high nibbles of eight bytes, a byte each.
__device__ __forceinline__ uint2 nibbles(uint2 bytes, bool high) {
    const int shift = high ? 4 : 0;
    return make_uint2(bytes.x >> shift & 0x0f0f0f0fu, bytes.y >> shift & 0x0f0f0f0fu);
}
// Four bits of `bits`, from the lowest on, as bytes of 0 or 1.
__device__ __forceinline__ uint32_t spread_bits(uint32_t bits) {
    return (bits & 15) * 0x00204081u & 0x01010101u;
}
// Four bytes below 16 as four nibbles.
__device__ __forceinline__ uint32_t join_nibbles(uint32_t bytes) {
    bytes |= bytes >> 4;
    return __byte_perm(bytes, 0, 0x4420);
}

// Sixteen bytes of a table, with 128 added.
struct CodeTable {
    uint32_t word[4];
    // Of four codes in the nibbles of the low half.
    __device__ __forceinline__ uint32_t at(uint32_t codes) const {
        const uint32_t pick = codes & 0x7777u, upper = (codes & 0x8888u) >> 1;
        return __byte_perm(__byte_perm(word[0], word[1], pick), __byte_perm(word[2], word[3], pick),
                           0x3210u | upper);
    }
};
// iq4_value.
__device__ constexpr CodeTable iq4_table() { return {{0x3f2d1801u, 0x766a5d4fu, 0xa6998d81u, 0xf1d9c5b5u}}; }
// e2m1_doubled: 0 1 2 3, 4 6 8 12 and their negatives.
__device__ constexpr CodeTable e2m1_table() { return {{0x83828180u, 0x8c888684u, 0x7d7e7f80u, 0x74787a7cu}}; }

// Elements first … first + 7 of a block.
template <Quant kQuant>
struct EightOf {
    static constexpr bool kBlock = false;
};
template <>
struct EightOf<Quant::q4_0> {
    static constexpr bool kBlock = true;
    __device__ __forceinline__ static void decode(const std::byte* b, int first, float (&v)[8]) {
        affine_eight(nibbles(load_words<2>(b + 2 + first % 16), first >= 16), 8, load_half(b), 0, v);
    }
};
template <>
struct EightOf<Quant::q4_1> {
    static constexpr bool kBlock = true;
    __device__ __forceinline__ static void decode(const std::byte* b, int first, float (&v)[8]) {
        const uint32_t dm = load_word<4>(b);
        affine_eight(nibbles(load_words<4>(b + 4 + first % 16), first >= 16), 0, half_float(dm),
                     half_float(dm >> 16), v);
    }
};
template <>
struct EightOf<Quant::q5_0> {
    static constexpr bool kBlock = true;
    __device__ __forceinline__ static void decode(const std::byte* b, int first, float (&v)[8]) {
        const uint32_t high = load_word<2>(b + 2) >> first;
        uint2 q = nibbles(load_words<2>(b + 6 + first % 16), first >= 16);
        q.x |= spread_bits(high) << 4, q.y |= spread_bits(high >> 4) << 4;
        affine_eight(q, 16, load_half(b), 0, v);
    }
};
template <>
struct EightOf<Quant::q5_1> {
    static constexpr bool kBlock = true;
    __device__ __forceinline__ static void decode(const std::byte* b, int first, float (&v)[8]) {
        const uint32_t dm = load_word<4>(b), high = load_word<4>(b + 4) >> first;
        uint2 q = nibbles(load_words<4>(b + 8 + first % 16), first >= 16);
        q.x |= spread_bits(high) << 4, q.y |= spread_bits(high >> 4) << 4;
        affine_eight(q, 0, half_float(dm), half_float(dm >> 16), v);
    }
};
template <>
struct EightOf<Quant::q8_0> {
    static constexpr bool kBlock = true;
    __device__ __forceinline__ static void decode(const std::byte* b, int first, float (&v)[8]) {
        uint2 q = load_words<2>(b + 2 + first);
        q.x ^= 0x80808080u, q.y ^= 0x80808080u;
        affine_eight(q, 128, load_half(b), 0, v);
    }
};
template <>
struct EightOf<Quant::iq4_nl> {
    static constexpr bool kBlock = true;
    __device__ __forceinline__ static void decode(const std::byte* b, int first, float (&v)[8]) {
        const uint2 q = nibbles(load_words<2>(b + 2 + first % 16), first >= 16);
        affine_eight(make_uint2(iq4_table().at(join_nibbles(q.x)), iq4_table().at(join_nibbles(q.y))), 128,
                     load_half(b), 0, v);
    }
};
template <>
struct EightOf<Quant::iq4_xs> {
    static constexpr bool kBlock = true;
    __device__ __forceinline__ static void decode(const std::byte* b, int first, float (&v)[8]) {
        using F = Format<Quant::iq4_xs>;
        const uint2 q = nibbles(load_words<4>(b + 8 + first / 32 * 16 + first % 16), first % 32 >= 16);
        const int scale = F::sub_scale(block_at<F::Block>(b), first / 32) - 32;
        affine_eight(make_uint2(iq4_table().at(join_nibbles(q.x)), iq4_table().at(join_nibbles(q.y))), 128,
                     load_half(b) * float(scale), 0, v);
    }
};
template <>
struct EightOf<Quant::q2_k> {
    static constexpr bool kBlock = true;
    __device__ __forceinline__ static void decode(const std::byte* b, int first, float (&v)[8]) {
        uint2 q = load_words<4>(b + 16 + first / 128 * 32 + first % 32);
        const uint32_t scales = load_byte(b + first / 16), dm = load_word<4>(b + 80);
        const int shift = first / 32 % 4 * 2;
        q.x = q.x >> shift & 0x03030303u, q.y = q.y >> shift & 0x03030303u;
        affine_eight(q, 0, half_float(dm) * float(scales & 15), -half_float(dm >> 16) * float(scales >> 4),
                     v);
    }
};
template <>
struct EightOf<Quant::q3_k> {
    static constexpr bool kBlock = true;
    __device__ __forceinline__ static void decode(const std::byte* b, int first, float (&v)[8]) {
        using F = Format<Quant::q3_k>;
        const uint2 h = load_words<2>(b + first % 32);
        uint2 q = load_words<2>(b + 32 + first / 128 * 32 + first % 32);
        const int shift = first / 32 % 4 * 2, bit = first / 32;
        q.x = (q.x >> shift & 0x03030303u) | (h.x >> bit & 0x01010101u) << 2;
        q.y = (q.y >> shift & 0x03030303u) | (h.y >> bit & 0x01010101u) << 2;
        const int scale = F::group_scale(block_at<F::Block>(b), first / 16) - 32;
        affine_eight(q, 4, load_half(b + 108) * float(scale), 0, v);
    }
};
// Scale and minimum of Q4_K and Q5_K, with their factors, of sub-block `sub`.
__device__ __forceinline__ float2 k_scales(const std::byte* b, int sub) {
    const uint32_t dm = load_word<4>(b);
    int scale, minimum;
    k_scale_min(reinterpret_cast<const uint8_t*>(b) + 4, sub, &scale, &minimum);
    return make_float2(half_float(dm) * float(scale), -half_float(dm >> 16) * float(minimum));
}
template <>
struct EightOf<Quant::q4_k> {
    static constexpr bool kBlock = true;
    __device__ __forceinline__ static void decode(const std::byte* b, int first, float (&v)[8]) {
        const float2 s = k_scales(b, first / 32);
        affine_eight(nibbles(load_words<4>(b + 16 + first / 64 * 32 + first % 32), first % 64 >= 32), 0, s.x,
                     s.y, v);
    }
};
template <>
struct EightOf<Quant::q5_k> {
    static constexpr bool kBlock = true;
    __device__ __forceinline__ static void decode(const std::byte* b, int first, float (&v)[8]) {
        const float2 s = k_scales(b, first / 32);
        const uint2 h = load_words<4>(b + 16 + first % 32);
        uint2 q = nibbles(load_words<4>(b + 48 + first / 64 * 32 + first % 32), first % 64 >= 32);
        const int bit = first / 32;
        q.x |= (h.x >> bit & 0x01010101u) << 4, q.y |= (h.y >> bit & 0x01010101u) << 4;
        affine_eight(q, 0, s.x, s.y, v);
    }
};
template <>
struct EightOf<Quant::q6_k> {
    static constexpr bool kBlock = true;
    __device__ __forceinline__ static void decode(const std::byte* b, int first, float (&v)[8]) {
        const int half = first / 128, quarter = first / 32 % 4, shift = quarter * 2;
        const uint2 h = load_words<2>(b + 128 + half * 32 + first % 32);
        uint2 q = nibbles(load_words<2>(b + half * 64 + quarter % 2 * 32 + first % 32), quarter >= 2);
        q.x |= (h.x >> shift & 0x03030303u) << 4, q.y |= (h.y >> shift & 0x03030303u) << 4;
        const int scale = int8_t(load_byte(b + 192 + first / 16));
        affine_eight(q, 32, load_half(b + 208) * float(scale), 0, v);
    }
};
template <>
struct EightOf<Quant::mxfp4> {
    static constexpr bool kBlock = true;
    __device__ __forceinline__ static void decode(const std::byte* b, int first, float (&v)[8]) {
        uint32_t q[2] = {};
#pragma unroll
        for (int i = 0; i < 8; ++i) q[i / 4] |= load_byte(b + 1 + first % 16 + i) << (i % 4 * 8);
        const uint2 n = nibbles(make_uint2(q[0], q[1]), first >= 16);
        affine_eight(make_uint2(e2m1_table().at(join_nibbles(n.x)), e2m1_table().at(join_nibbles(n.y))), 128,
                     Format<Quant::mxfp4>::half_scale(uint8_t(load_byte(b))), 0, v);
    }
};
template <>
struct EightOf<Quant::nvfp4> {
    static constexpr bool kBlock = true;
    __device__ __forceinline__ static void decode(const std::byte* b, int first, float (&v)[8]) {
        const uint2 q = nibbles(load_words<4>(b + 4 + first / 16 * 8), first % 16 >= 8);
        affine_eight(make_uint2(e2m1_table().at(join_nibbles(q.x)), e2m1_table().at(join_nibbles(q.y))), 128,
                     Format<Quant::nvfp4>::half_scale(uint8_t(load_byte(b + first / 16))), 0, v);
    }
};

// Codes of E4M3. REQUIRES: rows 8-byte aligned.
template <Quant kQuant>
__device__ __forceinline__ void decode_fp8(const Weight& w, int expert, int row, int col, float (&v)[8]) {
    const uint2 codes = __ldg(reinterpret_cast<const uint2*>(fp8_row(w, expert, row) + col));
    float scale = 1;
    if constexpr (kQuant == Quant::fp8_channel) scale = Format<kQuant>::row_scale(w, expert, row);
    if constexpr (kQuant == Quant::fp8_block)
        scale = Format<kQuant>::row_scales(w, expert, row)[col / Format<kQuant>::tile];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        const uint2 h = e4m3_to_f16(i ? codes.y : codes.x);
        const float2 a = __half22float2(reinterpret_cast<const __half2&>(h.x)),
                     b = __half22float2(reinterpret_cast<const __half2&>(h.y));
        v[4 * i] = a.x * scale, v[4 * i + 1] = a.y * scale;
        v[4 * i + 2] = b.x * scale, v[4 * i + 3] = b.y * scale;
    }
}

// Two codes a byte.
__device__ __forceinline__ void decode_nvfp4_split(const Weight& w, int expert, int row, int col,
                                                   float (&v)[8]) {
    const int64_t r = weight_row(w, expert, row);
    const uint32_t q = load_word<4>(static_cast<const std::byte*>(w.data) + r * (w.in / 2) + col / 2);
    const uint32_t scale = load_byte(static_cast<const std::byte*>(w.scales) + r * (w.in / 16) + col / 16);
    affine_eight(make_uint2(e2m1_table().at(q), e2m1_table().at(q >> 16)), 128,
                 0.5f * e4m3_to_f32(uint8_t(scale)), 0, v);
}

HD constexpr bool is_fp8(Quant q) {
    return q == Quant::fp8_channel || q == Quant::fp8_tensor || q == Quant::fp8_block;
}

template <Quant kQuant>
HD constexpr bool decodes_words() {
    return EightOf<kQuant>::kBlock || is_fp8(kQuant) || kQuant == Quant::nvfp4_split;
}

// Elements col … col + 7 of a row, without a branch, so that several can be on their way. REQUIRES: col a
// multiple of 8, col + 8 <= in, rows of FP8 8-byte aligned.
template <Quant kQuant>
__device__ __forceinline__ void decode_eight(const Weight& w, int expert, int row, int col, float (&v)[8]) {
    using F = Format<kQuant>;
    if constexpr (is_fp8(kQuant)) {
        decode_fp8<kQuant>(w, expert, row, col, v);
    } else if constexpr (kQuant == Quant::nvfp4_split) {
        decode_nvfp4_split(w, expert, row, col, v);
    } else {
        const std::byte* block = static_cast<const std::byte*>(w.data) +
                                 (weight_row(w, expert, row) * (w.in / F::block) + col / F::block) * F::bytes;
        EightOf<kQuant>::decode(block, col % F::block, v);
    }
}

}  // namespace sparkinfer::cuda
