// kv_cache.h — keys and values of all sequences in pages of 64 tokens.
//
// A page is one contiguous block, [layer][k, v][G][64][d] in the cache's dtype. Pages are reference-counted:
// a full page never changes again and is shared freely; a last, partial page that somebody else holds too is
// copied by whoever writes next. Only numbers live here; what a page list looks like on the device is the
// slots' business.
#pragma once
#include <optional>
#include <span>
#include <vector>

#include "core/result.h"
#include "engine/ref_pool.h"
#include "ops/backend.h"

namespace sparkinfer {

using PageList = std::vector<int32_t>;  // page of tokens 64·i … 64·i+63

constexpr int32_t pages_for(int64_t tokens) { return int32_t((tokens + kPageTokens - 1) / kPageTokens); }

class KvCache {
  public:
    // Bytes of one page of these layers.
    static int64_t page_bytes(std::span<const KvLayer> layers, DType dtype);

    // Makes the layers refer to `memory`, which holds `pages` pages. `layers` as in ModelShape.
    KvCache(std::span<const KvLayer> layers, DType dtype, Memory memory, int32_t pages);

    const std::vector<KvLayer>& layers() const { return layers_; }
    int32_t pages() const { return pool_.count(); }
    int32_t free() const { return pool_.free(); }

    // Appends pages until the list covers `tokens`. False, and nothing changed: not enough pages are free.
    bool reserve(PageList& list, int64_t tokens);
    // The first `tokens` tokens of a list, as one more reference to each of their pages.
    PageList share(const PageList& list, int64_t tokens);
    // Gives back the pages behind the first `tokens` tokens.
    void truncate(PageList& list, int64_t tokens);
    void release(PageList& list) { truncate(list, 0); }

    // A page that is about to be written but is shared: replaces it by a new one and says what must be
    // copied. REQUIRES: free() > 0 if needs_copy().
    struct Copy {
        int32_t entry;  // of the list
        std::span<std::byte> to;
        std::span<const std::byte> from;
    };
    bool needs_copy(const PageList& list, int32_t index) const;
    std::optional<Copy> make_writable(PageList& list, int32_t index);  // of token `index`

    // --- single pages, for the prefix cache
    int64_t bytes_each() const { return page_bytes_; }
    std::span<std::byte> bytes(int32_t page) const { return block(page); }
    int32_t refs(int32_t page) const { return pool_.refs(page); }
    int32_t take_page() { return pool_.take(); }  // REQUIRES: free() > 0
    void share_page(int32_t page) { pool_.share(page); }
    void release_page(int32_t page) { pool_.release(page); }

    // Aborts unless the reference counts are exactly what these lists hold.
    void check_integrity(std::span<const PageList* const> lists) const;

  private:
    std::span<std::byte> block(int32_t page) const {
        return {memory_.data + page * page_bytes_, size_t(page_bytes_)};
    }
    Memory memory_;
    int64_t page_bytes_;
    std::vector<KvLayer> layers_;
    RefPool pool_;
};

}  // namespace sparkinfer
