// half.h — small float formats as bit patterns: IEEE half, bfloat16, and the 8- and 4-bit formats of the OCP
// microscaling specification (E4M3, E8M0, E2M1), to and from float32.
//
// Everything is branch-free where it sits in an inner loop (the to-float direction), so that compilers
// vectorise it, and never relies on subnormal float32 arithmetic. Compiles for host and device.
#pragma once
#include <cstdint>
#include <cstring>

#include "core/hd.h"

namespace sparkinfer {

HD inline float float_of_bits(uint32_t bits) {
    float value;
    memcpy(&value, &bits, sizeof value);
    return value;
}

HD inline uint32_t bits_of_float(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// a where the condition holds, else b, by masks: compilers turn a conditional expression into a branch when
// one side is float arithmetic, and then do not vectorise the loop around it.
HD inline uint32_t select_bits(bool condition, uint32_t a, uint32_t b) {
    const uint32_t mask = 0u - uint32_t(condition);
    return (a & mask) | (b & ~mask);
}

// IEEE binary16 to float32, exact; a NaN keeps its payload.
HD inline float f16_to_f32(uint16_t half) {
    const uint32_t magnitude = half & 0x7fffu, exponent = half & 0x7c00u;
    const uint32_t normal = (magnitude << 13) + (112u << 23);  // rebias 15 -> 127
    const uint32_t special = normal + (112u << 23);            // exponent 31 -> 255: infinity, NaN
    const uint32_t tiny = bits_of_float(float(int32_t(magnitude)) * 0x1p-24f);  // subnormal: m * 2^-24
    uint32_t bits = select_bits(exponent == 0, tiny, normal);
    bits = select_bits(exponent == 0x7c00u, special, bits);
    return float_of_bits(bits | (uint32_t(half & 0x8000u) << 16));
}

// float32 to IEEE binary16, round to nearest even; overflow gives infinity, NaN stays NaN (quiet).
HD inline uint16_t f32_to_f16(float value) {
    const uint32_t bits = bits_of_float(value), sign = (bits >> 16) & 0x8000u;
    uint32_t x = bits & 0x7fffffffu;
    if (x >= 0x47800000u) {  // at least 2^16, infinity or NaN
        const uint32_t nan = 0x7e00u | ((x >> 13) & 0x3ffu);
        return uint16_t(sign | (x > 0x7f800000u ? nan : 0x7c00u));
    }
    if (x < 0x38800000u) {                            // below 2^-14: subnormal or zero
        if (x <= 0x33000000u) return uint16_t(sign);  // at most half of the smallest step, tie to even
        const uint32_t mantissa = (x & 0x7fffffu) | 0x800000u;
        const uint32_t shift = 126u - (x >> 23);  // value = mantissa * 2^(e-150), unit 2^-24
        const uint32_t rest = mantissa & ((1u << shift) - 1u), middle = 1u << (shift - 1u);
        uint32_t h = mantissa >> shift;
        h += (rest > middle || (rest == middle && (h & 1u))) ? 1u : 0u;
        return uint16_t(sign | h);
    }
    x += 0xfffu + ((x >> 13) & 1u);
    return uint16_t(sign | ((x - (112u << 23)) >> 13));  // a carry out of the mantissa ends in infinity
}

// bfloat16 is the upper half of a float32.
HD inline float bf16_to_f32(uint16_t half) { return float_of_bits(uint32_t(half) << 16); }

// float32 to bfloat16, round to nearest even; NaN stays NaN (quiet).
HD inline uint16_t f32_to_bf16(float value) {
    const uint32_t bits = bits_of_float(value);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return uint16_t((bits & 0x7fffffffu) > 0x7f800000u ? (bits >> 16) | 0x40u : rounded);
}

// E4M3 (the "FN" kind): 1-4-3 bits, bias 7, largest 448, no infinities, 0x7f and 0xff are NaN.
HD inline float e4m3_to_f32(uint8_t code) {
    const uint32_t magnitude = code & 0x7fu;
    const uint32_t normal = (magnitude << 20) + (120u << 23);
    const uint32_t tiny = bits_of_float(float(int32_t(magnitude)) * 0x1p-9f);
    uint32_t bits = select_bits(magnitude < 8u, tiny, normal);
    bits = select_bits(magnitude == 0x7fu, 0x7fc00000u, bits);
    return float_of_bits(bits | (uint32_t(code & 0x80u) << 24));
}

// float32 to E4M3, round to nearest even; beyond ±448, infinities too, gives ±448; NaN stays NaN.
HD inline uint8_t f32_to_e4m3(float value) {
    const uint32_t bits = bits_of_float(value), sign = (bits >> 24) & 0x80u, x = bits & 0x7fffffffu;
    // The unit in the last place of 2^14 is that of E4M3's subnormals.
    const uint32_t tiny = bits_of_float(float_of_bits(x) + 0x1p14f) & 15u;
    uint32_t code = (x + 0x7ffffu + ((x >> 20) & 1u) - (120u << 23)) >> 20;
    code = select_bits(x < 0x3c800000u, tiny, code);    // below 2^-6
    code = select_bits(x >= 0x43e00000u, 0x7eu, code);  // at least 448
    code = select_bits(x > 0x7f800000u, 0x7fu, code);
    return uint8_t(sign | code);
}

// E2M1: code 0..15, bit 3 is the sign, magnitudes 0, 0.5, 1, 1.5, 2, 3, 4, 6. Only the low four bits count.
HD inline float e2m1_to_f32(uint32_t code) {
    const uint32_t magnitude = code & 7u;
    const uint32_t normal = (magnitude << 22) + (126u << 23);
    const uint32_t tiny = magnitude * 0x3f000000u;  // 0 or 0.5
    return float_of_bits(select_bits(magnitude < 2u, tiny, normal) | ((code & 8u) << 28));
}

// UE8M0: an exponent alone, 2^(code-127); 255 is NaN in the specification.
HD inline float ue8m0_to_f32(uint8_t code) {
    const uint32_t bits = code == 0 ? 0x00400000u : uint32_t(code) << 23;  // 2^-127 is subnormal
    return float_of_bits(code == 255u ? 0x7fc00000u : bits);
}

}  // namespace sparkinfer
