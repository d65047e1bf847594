// encode.cpp — the plain formats, and which encoder a tag means.
#include "quant/encode.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "quant/encode_k.h"
#include "quant/fit.h"
#include "quant/formats.h"

namespace sparkinfer {

namespace {

constexpr int kBlock = 32;
constexpr int64_t kAtOnce = 8;  // blocks that are searched together
constexpr Trials kWeightedTrials{-0.9f, 0.05f, 36};

// One row: where it comes from and where it goes.
struct Row {
    const float* x;
    int64_t n;
    const float* importance;  // null: none
    std::byte* out;
};

template <class Block>
Block& block_of(std::byte* out, int64_t i) {
    return reinterpret_cast<Block*>(out)[i];
}

// 1 / d, or 0 where that is no number: all codes are the same then.
float inverse_of(float d) {
    const float inverse = 1 / d;
    return std::isfinite(inverse) ? inverse : 0;
}

// What an error costs at each value of a block: its column's importance, more where the value itself is
// large.
void weigh(const float* x, const float* importance, float mean_square, float* w) {
    for (int i = 0; i < kBlock; i++) w[i] = importance[i] * std::sqrt(mean_square + x[i] * x[i]);
}

float mean_square(const Row& row) {
    float sum = 0;
    for (int64_t i = 0; i < row.n; i++) sum += row.x[i] * row.x[i];
    return sum / float(row.n);
}

// Codes of a block as nibbles and, for five bits, their upper bits: element j low, j + 16 high in byte j.
template <class Block>
void pack(const uint8_t* q, Block* block) {
    for (int j = 0; j < 16; j++) block->qs[j] = uint8_t((q[j] & 15) | (q[j + 16] & 15) << 4);
    if constexpr (requires { block->qh; }) {
        uint32_t high = 0;
        for (int j = 0; j < kBlock; j++) high |= uint32_t(q[j] >> 4 & 1) << j;
        block->qh = high;
    }
}

void encode_q8_0(const Row& row) {
    for (int64_t b = 0; b < row.n / kBlock; b++) {
        const float* x = row.x + b * kBlock;
        float most = 0;
        for (int i = 0; i < kBlock; i++) most = std::max(most, std::fabs(x[i]));
        const float d = most / 127.0f, inverse = inverse_of(d);
        auto& block = block_of<Format<Quant::q8_0>::Block>(row.out, b);
        block.d = f32_to_f16(d);
        for (int i = 0; i < kBlock; i++) block.qs[i] = int8_t(std::round(x[i] * inverse));
    }
}

template <Quant kQuant, int kHalf>
void encode_symmetric_block(const float* x, typename Format<kQuant>::Block* block) {
    float extreme = 0;
    for (int i = 0; i < kBlock; i++)
        if (std::fabs(x[i]) > std::fabs(extreme)) extreme = x[i];
    const float d = extreme / float(-kHalf), inverse = inverse_of(d);
    block->d = f32_to_f16(d);
    uint8_t q[kBlock];
    for (int i = 0; i < kBlock; i++)
        q[i] = uint8_t(std::min(2 * kHalf - 1, int(x[i] * inverse + (float(kHalf) + 0.5f))));
    pack(q, block);
}

// The weights of `count` blocks from `first` on.
void weigh_blocks(const Row& row, int64_t first, int count, float spread, float* w) {
    for (int64_t k = 0; k < count; k++)
        weigh(row.x + (first + k) * kBlock, row.importance + (first + k) * kBlock, spread, w + k * kBlock);
}

// Q4_0 and Q5_0, y = d·(q − half): the value of largest magnitude gets the code 0; with importance, the best
// that a search finds, for several blocks at once.
template <Quant kQuant, int kHalf>
void encode_symmetric(const Row& row) {
    const float spread = row.importance ? mean_square(row) : 0;
    const int64_t blocks = row.n / kBlock;
    for (int64_t b = 0; b < blocks; b += kAtOnce) {
        const int count = int(std::min(kAtOnce, blocks - b));
        float w[kAtOnce * kBlock], scales[kAtOnce];
        int8_t codes[kAtOnce * kBlock];
        if (row.importance) {
            weigh_blocks(row, b, count, spread, w);
            fit_scale({row.x + b * kBlock, w, count, kBlock}, kHalf, scales, codes);
        }
        for (int k = 0; k < count; k++) {
            auto& block = block_of<typename Format<kQuant>::Block>(row.out, b + k);
            if (useful(row.importance, (b + k) * kBlock, kBlock)) {
                uint8_t q[kBlock];
                std::copy_n(codes + k * kBlock, kBlock, q);
                block.d = f32_to_f16(scales[k]);
                pack(q, &block);
            } else {
                encode_symmetric_block<kQuant, kHalf>(row.x + (b + k) * kBlock, &block);
            }
        }
    }
}

template <Quant kQuant, int kMax>
void encode_affine_block(const float* x, typename Format<kQuant>::Block* block) {
    const auto [min, max] = std::minmax_element(x, x + kBlock);
    const float d = (*max - *min) / float(kMax), inverse = inverse_of(d);
    block->d = f32_to_f16(d);
    block->m = f32_to_f16(*min);
    uint8_t q[kBlock];
    for (int i = 0; i < kBlock; i++)
        q[i] = uint8_t(std::min(kMax, int((x[i] - *min) * inverse + 0.5f)));  // NOLINT: as the reference
    pack(q, block);
}

// Q4_1 and Q5_1, y = d·q + m: the smallest value gets the code 0, the largest the last; with importance, the
// best that a search finds, for several blocks at once.
template <Quant kQuant, int kMax>
void encode_affine(const Row& row) {
    const float spread = row.importance ? mean_square(row) : 0;
    const int64_t blocks = row.n / kBlock;
    for (int64_t b = 0; b < blocks; b += kAtOnce) {
        const int count = int(std::min(kAtOnce, blocks - b));
        float w[kAtOnce * kBlock];
        ScaleMin fits[kAtOnce];
        uint8_t q[kAtOnce * kBlock];
        if (row.importance) {
            weigh_blocks(row, b, count, spread, w);
            fit_scale_min({row.x + b * kBlock, w, count, kBlock}, kMax, kWeightedTrials, fits, q);
        }
        for (int k = 0; k < count; k++) {
            auto& block = block_of<typename Format<kQuant>::Block>(row.out, b + k);
            if (useful(row.importance, (b + k) * kBlock, kBlock)) {
                block.d = f32_to_f16(fits[k].scale);
                block.m = f32_to_f16(fits[k].min);
                pack(q + k * kBlock, &block);
            } else {
                encode_affine_block<kQuant, kMax>(row.x + (b + k) * kBlock, &block);
            }
        }
    }
}

void encode_plain(Quant q, const Row& row) {
    if (q == Quant::f32) {
        std::memcpy(row.out, row.x, size_t(row.n) * sizeof(float));
        return;
    }
    for (int64_t i = 0; i < row.n; i++) {
        const uint16_t half = q == Quant::f16 ? f32_to_f16(row.x[i]) : f32_to_bf16(row.x[i]);
        std::memcpy(row.out + 2 * i, &half, sizeof half);
    }
}

}  // namespace

bool can_encode(Quant q) {
    switch (q) {
        case Quant::f32:
        case Quant::f16:
        case Quant::bf16:
        case Quant::q4_0:
        case Quant::q4_1:
        case Quant::q5_0:
        case Quant::q5_1:
        case Quant::q8_0:
        case Quant::q4_k:
        case Quant::q5_k:
        case Quant::q6_k: return true;
        default: return false;
    }
}

void encode_row(Quant q, const float* x, int64_t n, const float* importance, std::byte* out) {
    CHECK(can_encode(q) && n % quant_block(q) == 0, "{} values as {}", n, quant_name(q));
    const Row row{x, n, importance, out};
    switch (q) {
        case Quant::q8_0: return encode_q8_0(row);
        case Quant::q4_0: return encode_symmetric<Quant::q4_0, 8>(row);
        case Quant::q5_0: return encode_symmetric<Quant::q5_0, 16>(row);
        case Quant::q4_1: return encode_affine<Quant::q4_1, 15>(row);
        case Quant::q5_1: return encode_affine<Quant::q5_1, 31>(row);
        case Quant::q4_k: return encode_q4_k(x, n, importance, out);
        case Quant::q5_k: return encode_q5_k(x, n, importance, out);
        case Quant::q6_k: return encode_q6_k(x, n, importance, out);
        default: return encode_plain(q, row);
    }
}

}  // namespace sparkinfer
