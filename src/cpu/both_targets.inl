// both_targets.inl — what the file KERNELS holds, which needs Wide, for AVX-512 in namespace avx512 and for AVX2
// in avx2; nothing on other machines. Needs targets.h.
#if defined(__x86_64__)
TARGET_BEGIN("arch=x86-64-v4,avx512vnni")
namespace avx512 {
#include "cpu/wide512.inl"
// Needs Wide.
#include KERNELS
}  // namespace avx512
TARGET_END
TARGET_BEGIN("arch=x86-64-v3")
namespace avx2 {
#include "cpu/wide256.inl"
// Needs Wide.
#include KERNELS
}  // namespace avx2
TARGET_END
#endif
#undef KERNELS
