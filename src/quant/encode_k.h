// encode_k.h — the encoders of the formats with 256 values a block; encode.h says what they are given.
#pragma once
#include <cstddef>
#include <cstdint>

namespace sparkinfer {

void encode_q4_k(const float* x, int64_t n, const float* importance, std::byte* out);
void encode_q5_k(const float* x, int64_t n, const float* importance, std::byte* out);
void encode_q6_k(const float* x, int64_t n, const float* importance, std::byte* out);

}  // namespace sparkinfer
