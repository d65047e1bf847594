// wgmma.cuh — one step of 64 columns of wgmma with A from registers; also with a token count known only at
// run time, on the same accumulator registers for every count. sm_90a.
#pragma once
#include <cstdint>

namespace sparkinfer::cuda {

constexpr int kRaggedTokens = 160;  // most; counts are multiples of 16

// clang-format off
#define SI_ACC0 "%0,%1,%2,%3,%4,%5,%6,%7"
#define SI_ACC1 SI_ACC0 ",%8,%9,%10,%11,%12,%13,%14,%15"
#define SI_ACC2 SI_ACC1 ",%16,%17,%18,%19,%20,%21,%22,%23"
#define SI_ACC3 SI_ACC2 ",%24,%25,%26,%27,%28,%29,%30,%31"
#define SI_ACC4 SI_ACC3 ",%32,%33,%34,%35,%36,%37,%38,%39"
#define SI_ACC5 SI_ACC4 ",%40,%41,%42,%43,%44,%45,%46,%47"
#define SI_ACC6 SI_ACC5 ",%48,%49,%50,%51,%52,%53,%54,%55"
#define SI_ACC7 SI_ACC6 ",%56,%57,%58,%59,%60,%61,%62,%63"
#define SI_ACC8 SI_ACC7 ",%64,%65,%66,%67,%68,%69,%70,%71"
#define SI_ACC9 SI_ACC8 ",%72,%73,%74,%75,%76,%77,%78,%79"
#define SI_WGMMA(n, acc, a, b) \
    "wgmma.mma_async.sync.aligned.m64n" n "k16.f32.f16.f16 {" acc "},{" a "}," b ",1,1,1,0;\n"
// Fence and commit lie inside a case: behind the branch ptxas adds an empty group, and a wait for all but one
// waits for all.
#define SI_CASE(label, n, acc)                            \
    label ":\nwgmma.fence.sync.aligned;\n"                \
    SI_WGMMA(n, acc, "%80,%81,%82,%83", "%96")            \
    SI_WGMMA(n, acc, "%84,%85,%86,%87", "b1")             \
    SI_WGMMA(n, acc, "%88,%89,%90,%91", "b2")             \
    SI_WGMMA(n, acc, "%92,%93,%94,%95", "b3")             \
    "wgmma.commit_group.sync.aligned;\nbra.uni E;\n"
#define SI_OUT8(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), \
                   "+f"(d[i + 4]), "+f"(d[i + 5]), "+f"(d[i + 6]), "+f"(d[i + 7])
#define SI_IN4(i) "r"(a[i]), "r"(a[i + 1]), "r"(a[i + 2]), "r"(a[i + 3])

// d [8 · sixteens] += A (64 rows × 64 columns, fragments of four k16 steps) · B (columns × 16 · sixteens tokens at
// the shared-memory descriptor).
__device__ __forceinline__ void wgmma_ragged(float (&d)[80], const uint32_t* a, uint64_t b, int sixteens) {
    asm volatile(
        "{.reg .b64 b1,b2,b3;\nadd.s64 b1,%96,2;\nadd.s64 b2,%96,4;\nadd.s64 b3,%96,6;\n"
        "T: .branchtargets L1,L2,L3,L4,L5,L6,L7,L8,L9,L10;\nbrx.idx.uni %97,T;\n"
        SI_CASE("L1", "16", SI_ACC0)
        SI_CASE("L2", "32", SI_ACC1)
        SI_CASE("L3", "48", SI_ACC2)
        SI_CASE("L4", "64", SI_ACC3)
        SI_CASE("L5", "80", SI_ACC4)
        SI_CASE("L6", "96", SI_ACC5)
        SI_CASE("L7", "112", SI_ACC6)
        SI_CASE("L8", "128", SI_ACC7)
        SI_CASE("L9", "144", SI_ACC8)
        SI_CASE("L10", "160", SI_ACC9)
        "E:\n}"
        : SI_OUT8(0), SI_OUT8(8), SI_OUT8(16), SI_OUT8(24), SI_OUT8(32), SI_OUT8(40), SI_OUT8(48), SI_OUT8(56),
          SI_OUT8(64), SI_OUT8(72)
        : SI_IN4(0), SI_IN4(4), SI_IN4(8), SI_IN4(12), "l"(b), "r"(sixteens - 1));
}
// The same for a count known when it is compiled.
__device__ __forceinline__ void wgmma_fixed(float (&d)[8], const uint32_t* a, uint64_t b) {
    asm volatile(
        "{.reg .b64 b1,b2,b3;\nadd.s64 b1,%24,2;\nadd.s64 b2,%24,4;\nadd.s64 b3,%24,6;\nwgmma.fence.sync.aligned;\n"
        SI_WGMMA("16", SI_ACC0, "%8,%9,%10,%11", "%24")
        SI_WGMMA("16", SI_ACC0, "%12,%13,%14,%15", "b1")
        SI_WGMMA("16", SI_ACC0, "%16,%17,%18,%19", "b2")
        SI_WGMMA("16", SI_ACC0, "%20,%21,%22,%23", "b3")
        "wgmma.commit_group.sync.aligned;\n}"
        : SI_OUT8(0)
        : SI_IN4(0), SI_IN4(4), SI_IN4(8), SI_IN4(12), "l"(b));
}
__device__ __forceinline__ void wgmma_fixed(float (&d)[16], const uint32_t* a, uint64_t b) {
    asm volatile(
        "{.reg .b64 b1,b2,b3;\nadd.s64 b1,%32,2;\nadd.s64 b2,%32,4;\nadd.s64 b3,%32,6;\nwgmma.fence.sync.aligned;\n"
        SI_WGMMA("32", SI_ACC1, "%16,%17,%18,%19", "%32")
        SI_WGMMA("32", SI_ACC1, "%20,%21,%22,%23", "b1")
        SI_WGMMA("32", SI_ACC1, "%24,%25,%26,%27", "b2")
        SI_WGMMA("32", SI_ACC1, "%28,%29,%30,%31", "b3")
        "wgmma.commit_group.sync.aligned;\n}"
        : SI_OUT8(0), SI_OUT8(8)
        : SI_IN4(0), SI_IN4(4), SI_IN4(8), SI_IN4(12), "l"(b));
}
__device__ __forceinline__ void wgmma_fixed(float (&d)[32], const uint32_t* a, uint64_t b) {
    asm volatile(
        "{.reg .b64 b1,b2,b3;\nadd.s64 b1,%48,2;\nadd.s64 b2,%48,4;\nadd.s64 b3,%48,6;\nwgmma.fence.sync.aligned;\n"
        SI_WGMMA("64", SI_ACC3, "%32,%33,%34,%35", "%48")
        SI_WGMMA("64", SI_ACC3, "%36,%37,%38,%39", "b1")
        SI_WGMMA("64", SI_ACC3, "%40,%41,%42,%43", "b2")
        SI_WGMMA("64", SI_ACC3, "%44,%45,%46,%47", "b3")
        "wgmma.commit_group.sync.aligned;\n}"
        : SI_OUT8(0), SI_OUT8(8), SI_OUT8(16), SI_OUT8(24)
        : SI_IN4(0), SI_IN4(4), SI_IN4(8), SI_IN4(12), "l"(b));
}
// clang-format on
#undef SI_ACC0
#undef SI_ACC1
#undef SI_ACC2
#undef SI_ACC3
#undef SI_ACC4
#undef SI_ACC5
#undef SI_ACC6
#undef SI_ACC7
#undef SI_ACC8
#undef SI_ACC9
#undef SI_WGMMA
#undef SI_CASE
#undef SI_OUT8
#undef SI_IN4

// REQUIRES: a count of 16 · sixteens ≤ kTokens; exactly kTokens, where that is not kRaggedTokens.
template <int kTokens>
__device__ __forceinline__ void wgmma_step(float (&d)[kTokens / 2], const uint32_t* a, uint64_t b,
                                           int sixteens) {
    if constexpr (kTokens == kRaggedTokens)
        wgmma_ragged(d, a, b, sixteens);
    else
        wgmma_fixed(d, a, b);
}

template <int kPending>
__device__ __forceinline__ void wgmma_wait() {
    asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}
// Rows of 128 bytes with a 128-byte swizzle, eight of them 1024 bytes apart.
__device__ __forceinline__ uint64_t wgmma_operand(uint32_t shared) {
    return uint64_t((shared & 0x3ffff) >> 4) | uint64_t(1) << 16 | uint64_t(64) << 32 | uint64_t(1) << 62;
}

}  // namespace sparkinfer::cuda
