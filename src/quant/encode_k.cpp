// encode_k.cpp — blocks of 256 values: each sub-block gets its scale (and minimum) by a search, these get
// codes of their own under the block's scales, and at last the values are rounded against what the decoder
// will see.
#include "quant/encode_k.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "quant/fit.h"
#include "quant/formats.h"

namespace sparkinfer {

namespace {

constexpr int kBlock = 256, kSub = 32, kSubs = kBlock / kSub;
constexpr int kScaleMax = 63;  // scales and minima have 6 bits

// How Q4_K and Q5_K search: without importance the published ranges of trials differ.
struct Search {
    int q_max;
    Trials plain, weighted;
};
constexpr Search kSearch4{15, {-1.0f, 0.1f, 20}, {-0.9f, 0.05f, 36}};
constexpr Search kSearch5{31, {-0.5f, 0.1f, 15}, {-0.9f, 0.05f, 36}};

// A block of Q4_K or Q5_K before it is packed.
struct Codes {
    uint8_t q[kBlock];
    uint8_t scale[kSubs], min[kSubs];
    uint16_t d, dmin;  // f16
};

float sum_of_squares(const float* x, int n) {
    float sum = 0;
    for (int i = 0; i < n; i++) sum += x[i] * x[i];
    return sum;
}

// Codes of 6 bits for values that are at least 0, all under one scale: the largest gets the last code.
float even_codes(const float* values, uint8_t* codes) {
    const float most = *std::max_element(values, values + kSubs);
    const float inverse = most > 0 ? float(kScaleMax) / most : 0;
    for (int s = 0; s < kSubs; s++)
        codes[s] = uint8_t(std::clamp(round_to_int(inverse * values[s]), 0, kScaleMax));
    return most / float(kScaleMax);
}

// What an error costs at each value of a block, and together at those of a sub-block.
void weigh_block(const float* x, const float* importance, float* w, float* weight_of) {
    const float spread = importance ? 2 * sum_of_squares(x, kBlock) / kBlock : 0;
    for (int s = 0; s < kSubs; s++) {
        const float* sub = x + s * kSub;
        const float root = importance ? 0 : std::sqrt(sum_of_squares(sub, kSub) / kSub);
        weight_of[s] = 0;
        for (int i = 0; i < kSub; i++) {
            const int at = s * kSub + i;
            w[at] =
                importance ? importance[at] * std::sqrt(spread + sub[i] * sub[i]) : root + std::fabs(sub[i]);
            weight_of[s] += w[at];
        }
    }
}

// The search of one block: sub-blocks first, then the codes of their scales and minima.
void search_block(const float* x, const float* importance, const Search& search, Codes* codes) {
    float w[kBlock], weight_of[kSubs], scales[kSubs], mins[kSubs];
    ScaleMin fits[kSubs];
    weigh_block(x, importance, w, weight_of);
    fit_scale_min({x, w, kSubs, kSub}, search.q_max, importance ? search.weighted : search.plain, fits,
                  codes->q);
    for (int s = 0; s < kSubs; s++) {
        scales[s] = fits[s].scale;
        mins[s] = -fits[s].min;
    }
    if (importance) {
        codes->d = f32_to_f16(fit_positive(scales, weight_of, kSubs, kScaleMax, codes->scale));
        codes->dmin = f32_to_f16(fit_positive(mins, weight_of, kSubs, kScaleMax, codes->min));
    } else {
        codes->d = f32_to_f16(even_codes(scales, codes->scale));
        codes->dmin = f32_to_f16(even_codes(mins, codes->min));
    }
}

// Rounds the values again, against scales and minima as they will be decoded.
void round_block(const float* x, int q_max, Codes* codes) {
    for (int s = 0; s < kSubs; s++) {
        const float d = f16_to_f32(codes->d) * float(codes->scale[s]);
        const float min = f16_to_f32(codes->dmin) * float(codes->min[s]);
        uint8_t* q = codes->q + s * kSub;
        if (d == 0) {
            std::fill_n(q, kSub, uint8_t(0));
            continue;
        }
        for (int i = 0; i < kSub; i++) {
            const float code = std::clamp((x[s * kSub + i] + min) / d, 0.0f, float(q_max));
            q[i] = uint8_t(round_to_int(code));
        }
    }
}

// The twelve bytes that k_scale_min reads.
void pack_scales(const Codes& codes, uint8_t* out) {
    for (int s = 0; s < 4; s++) {
        out[s] = uint8_t(codes.scale[s] | (codes.scale[s + 4] >> 4) << 6);
        out[s + 4] = uint8_t(codes.min[s] | (codes.min[s + 4] >> 4) << 6);
        out[s + 8] = uint8_t((codes.scale[s + 4] & 15) | (codes.min[s + 4] & 15) << 4);
    }
}

template <Quant kQuant>
void encode_scale_min(const float* x, int64_t n, const float* importance, std::byte* out) {
    using Block = typename Format<kQuant>::Block;
    constexpr const Search& search = kQuant == Quant::q4_k ? kSearch4 : kSearch5;
    for (int64_t b = 0; b < n / kBlock; b++, x += kBlock) {
        Codes codes;
        search_block(x, useful(importance, b * kBlock, kBlock), search, &codes);
        round_block(x, search.q_max, &codes);
        Block& block = reinterpret_cast<Block*>(out)[b];
        std::memset(&block, 0, sizeof block);
        block.d = codes.d;
        block.dmin = codes.dmin;
        pack_scales(codes, block.scales);
        for (int i = 0; i < kBlock; i++) {
            const int sub = i / kSub, l = i % kSub;
            block.qs[kSub * (sub / 2) + l] |= uint8_t((codes.q[i] & 15) << 4 * (sub % 2));
            if constexpr (kQuant == Quant::q5_k) block.qh[l] |= uint8_t((codes.q[i] >> 4) << sub);
        }
    }
}

constexpr int kGroup = 16, kGroups = kBlock / kGroup, kAtOnce = 8;

void encode_q6_block(const float* x, const float* importance, Format<Quant::q6_k>::Block* block) {
    float scales[kGroups], w[kBlock];
    int8_t q[kBlock];
    for (int g = 0; g < kGroups; g++) {
        const float* given = useful(importance, g * kGroup, kGroup);
        for (int i = 0; i < kGroup; i++) {
            const float value = x[g * kGroup + i];
            w[g * kGroup + i] = given ? given[i] : value * value;
        }
    }
    for (int g = 0; g < kGroups; g += kAtOnce)
        fit_scale({x + g * kGroup, w + g * kGroup, kAtOnce, kGroup}, 32, scales + g, q + g * kGroup);
    float extreme = 0;  // the scale of largest magnitude, with its sign
    for (const float scale : scales)
        if (std::fabs(scale) > std::fabs(extreme)) extreme = scale;
    std::memset(block, 0, sizeof *block);
    if (std::fabs(extreme) < 1e-15f) return;
    const float inverse = -128.0f / extreme;
    block->d = f32_to_f16(1 / inverse);
    for (int g = 0; g < kGroups; g++) {
        block->scales[g] = int8_t(std::min(127, round_to_int(inverse * scales[g])));
        const float d = f16_to_f32(block->d) * float(block->scales[g]);
        for (int i = g * kGroup; d != 0 && i < (g + 1) * kGroup; i++)
            q[i] = int8_t(round_to_int(std::clamp(x[i] / d, -32.0f, 31.0f)) + 32);
    }
    for (int i = 0; i < kBlock; i++) {
        const int half = i / 128, quarter = i / 32 % 4, l = i % 32;
        block->ql[64 * half + 32 * (quarter % 2) + l] |= uint8_t((q[i] & 15) << 4 * (quarter / 2));
        block->qh[32 * half + l] |= uint8_t((q[i] >> 4) << 2 * quarter);
    }
}

}  // namespace

void encode_q4_k(const float* x, int64_t n, const float* importance, std::byte* out) {
    encode_scale_min<Quant::q4_k>(x, n, importance, out);
}

void encode_q5_k(const float* x, int64_t n, const float* importance, std::byte* out) {
    encode_scale_min<Quant::q5_k>(x, n, importance, out);
}

void encode_q6_k(const float* x, int64_t n, const float* importance, std::byte* out) {
    for (int64_t b = 0; b < n / kBlock; b++)
        encode_q6_block(x + b * kBlock, importance ? importance + b * kBlock : nullptr,
                        &reinterpret_cast<Format<Quant::q6_k>::Block*>(out)[b]);
}

}  // namespace sparkinfer
