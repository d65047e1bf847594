// host_block.h — host memory for one page or state that has left a device.
#pragma once
#include <sys/mman.h>

#include <cstddef>
#include <cstdlib>
#include <functional>
#include <memory>

namespace sparkinfer {

using HostBlock = std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;

// What plain_host_block has given out.
inline void free_host_block(std::byte* block) { std::free(block); }

// Not initialised; null: the machine has no memory left. Large blocks ask for large pages: a recurrent state
// of 63 MB would otherwise take 16,000 page faults (28 ms instead of 6; 142 once, the first time), while
// every sequence waits.
inline HostBlock plain_host_block(size_t bytes) {
    constexpr size_t kHugePage = size_t(2) << 20;
    const auto block = [](void* p) { return HostBlock(static_cast<std::byte*>(p), free_host_block); };
    if (bytes < 2 * kHugePage) return block(std::malloc(bytes));
    void* p = std::aligned_alloc(kHugePage, (bytes + kHugePage - 1) / kHugePage * kHugePage);
    if (p) (void)madvise(p, bytes, MADV_HUGEPAGE);  // a wish: without it the block is as good
    return block(p);
}

}  // namespace sparkinfer
