// philox.h — the counter-based random numbers of sampling: Philox4x32 with 10 rounds.
//
// J. K. Salmon, M. A. Moraes, R. O. Dror, D. E. Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
// Number n of a sequence is a function of (seed, n) alone, so it does not matter which device draws it, or
// when.
#pragma once
#include <cstdint>

#include "core/hd.h"

namespace sparkinfer {

struct Philox {
    uint32_t word[4];
};

HD inline Philox philox4x32_10(Philox counter, uint32_t key0, uint32_t key1) {
    uint32_t* c = counter.word;
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t(0xD2511F53u) * c[0], b = uint64_t(0xCD9E8D57u) * c[2];
        const uint32_t next[4] = {uint32_t(b >> 32) ^ c[1] ^ key0, uint32_t(b),
                                  uint32_t(a >> 32) ^ c[3] ^ key1, uint32_t(a)};
        for (int i = 0; i < 4; ++i) c[i] = next[i];
        key0 += 0x9E3779B9u;
        key1 += 0xBB67AE85u;
    }
    return counter;
}

// The uniform number in [0, 1) that chooses token `index` of a sequence: 24 bits, exact in float32.
HD inline float philox_uniform(const uint32_t seed[2], uint32_t index) {
    return float(philox4x32_10({{index, 0, 0, 0}}, seed[0], seed[1]).word[0] >> 8) * 0x1p-24f;
}

}  // namespace sparkinfer
