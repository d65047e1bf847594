// block.h — what the block formats share: packed structs over raw bytes, and the traits of both kinds.
#pragma once
#include <cstddef>
#include <cstdint>

#include "core/half.h"
#include "core/hd.h"
#include "quant/quant.h"

// Blocks lie at any address of a file's bytes: no alignment may be assumed, and the access must be allowed to
// alias the bytes.
#define SPARKINFER_PACKED __attribute__((packed, may_alias))
// Inner loops are inlined into the caller so that they are compiled for the caller's instruction set.
#define SPARKINFER_INLINE __attribute__((always_inline)) inline

// Before a short inner loop: leave it a loop. A loop of 16 would be unrolled before it can be vectorised.
#define SPARKINFER_ROLLED _Pragma("GCC unroll 1")

namespace sparkinfer {

// The i-th block of type B from `bytes` on.
template <class B>
HD SPARKINFER_INLINE const B& block_at(const std::byte* bytes, int64_t i = 0) {
    return reinterpret_cast<const B*>(bytes)[i];
}

// Hides how a scale was computed. Without it the vectoriser may see through the broadcast and compute the
// scale once per lane, which costs more than the block.
SPARKINFER_INLINE float opaque(float value) {
#if defined(__x86_64__)
    asm("" : "+x"(value));
#elif defined(__aarch64__)
    asm("" : "+w"(value));
#endif
    return value;
}

// Self-contained blocks: Format<q> has block (elements), bytes, decode_block and decode_blocks.
struct BlockFormat {
    static constexpr bool split = false;
};

// Codes and scales in separate planes: Format<q> has block (elements that share `bytes` bytes of codes),
// bytes, decode, decode_row and scale_bytes.
struct SplitFormat {
    static constexpr bool split = true;
};

}  // namespace sparkinfer
