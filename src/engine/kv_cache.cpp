#include "engine/kv_cache.h"

namespace sparkinfer {
namespace {

int64_t layer_bytes(const KvLayer& layer, DType dtype) {
    return int64_t(2) * layer.heads * kPageTokens * layer.width * dtype_bytes(dtype);
}

}  // namespace

int64_t KvCache::page_bytes(std::span<const KvLayer> layers, DType dtype) {
    int64_t bytes = 0;
    for (const KvLayer& layer : layers) bytes += layer_bytes(layer, dtype);
    return bytes;
}

KvCache::KvCache(std::span<const KvLayer> layers, DType dtype, Memory memory, int32_t pages)
    : memory_(memory),
      page_bytes_(page_bytes(layers, dtype)),
      layers_(layers.begin(), layers.end()),
      pool_(pages) {
    CHECK(memory.bytes >= page_bytes_ * pages, "{} bytes for {} pages of {}", memory.bytes, pages,
          page_bytes_);
    std::byte* at = memory.data;
    for (KvLayer& layer : layers_) {
        layer.pages = at;
        layer.page_bytes = page_bytes_;
        layer.dtype = dtype;
        at += layer_bytes(layer, dtype);
    }
}

bool KvCache::reserve(PageList& list, int64_t tokens) {
    const int32_t missing = pages_for(tokens) - int32_t(list.size());
    if (missing > pool_.free()) return false;
    for (int32_t i = 0; i < missing; ++i) list.push_back(pool_.take());
    return true;
}

PageList KvCache::share(const PageList& list, int64_t tokens) {
    const int32_t n = pages_for(tokens);
    CHECK(n <= int32_t(list.size()), "{} tokens of {} pages", tokens, list.size());
    PageList shared(list.begin(), list.begin() + n);
    for (int32_t page : shared) pool_.share(page);
    return shared;
}

void KvCache::truncate(PageList& list, int64_t tokens) {
    const size_t keep = size_t(pages_for(tokens));
    while (list.size() > keep) {
        pool_.release(list.back());
        list.pop_back();
    }
}

bool KvCache::needs_copy(const PageList& list, int32_t index) const {
    const size_t entry = size_t(index / kPageTokens);
    return entry < list.size() && pool_.shared(list[entry]);
}

std::optional<KvCache::Copy> KvCache::make_writable(PageList& list, int32_t index) {
    if (!needs_copy(list, index)) return std::nullopt;
    // A page that starts at `index` holds nothing of this sequence yet: such pages are never shared.
    CHECK(index % kPageTokens != 0, "the page of token {} is shared before it has a token", index);
    const int32_t entry = index / kPageTokens;
    const int32_t old = list[size_t(entry)], fresh = pool_.take();
    list[size_t(entry)] = fresh;
    pool_.release(old);
    return Copy{entry, block(fresh), block(old)};
}

void KvCache::check_integrity(std::span<const PageList* const> lists) const {
    std::vector<int32_t> held(size_t(pool_.count()), 0);
    for (const PageList* list : lists)
        for (int32_t page : *list) ++held[size_t(page)];
    pool_.check_integrity(held);
}

}  // namespace sparkinfer
