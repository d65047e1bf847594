// host_block.h — host memory for one page or state that has left the device.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <memory>

namespace sparkinfer {

struct FreeHostBlock {
    void operator()(std::byte* block) const { std::free(block); }
};
using HostBlock = std::unique_ptr<std::byte[], FreeHostBlock>;

// Not initialised; null: the machine has no memory left. Large blocks ask for large pages: a recurrent state
// of 63 MB would otherwise take 16,000 page faults (28 ms instead of 6; 142 once, the first time), while
// every sequence waits.
inline HostBlock host_block(size_t bytes) {
    constexpr size_t kHugePage = size_t(2) << 20;
    if (bytes < 2 * kHugePage) return HostBlock(static_cast<std::byte*>(std::malloc(bytes)));
    void* block = std::aligned_alloc(kHugePage, (bytes + kHugePage - 1) / kHugePage * kHugePage);
    if (block) (void)madvise(block, bytes, MADV_HUGEPAGE);  // a wish: without it the block is as good
    return HostBlock(static_cast<std::byte*>(block));
}

}  // namespace sparkinfer
