// cache_file.h — the prefix cache on disk.
//
//   header   magic "SPRKKEEP", version, identity, page bytes, state bytes, nodes, checksum   one FileHeader
//   node     number of its parent (-1: none) … checksum                                      one FileNode
//            salt (of nodes without parent) · tokens · page · state
//
// Nodes are numbered in order, parents first. Every node's checksum covers its record and all that follows
// it. A file is written beside its name and renamed when it is whole and on the disk.
#pragma once
#include <span>
#include <string>

#include "engine/prefix_cache.h"

namespace sparkinfer {

// Eight bytes at a time; finds damage, keeps nobody out.
uint64_t hash_bytes(uint64_t seed, std::span<const std::byte> bytes);

class CacheFile {
  public:
    // `identity` tells models apart whose pages must not be mixed up.
    static Result<void> save(PrefixCache& cache, uint64_t identity, const std::string& path);
    // Refuses what is not whole, sound and of this model before anything is taken from it. What has no room
    // is left out.
    static Result<void> load(PrefixCache& cache, uint64_t identity, const std::string& path);

  private:
    struct Entry;
    static Result<std::vector<Entry>> read(const PrefixCache& cache, uint64_t identity,
                                           const std::string& path, std::span<const std::byte> bytes);
    static bool place(PrefixCache& cache, PrefixCache::Place& place, std::span<const std::byte> bytes,
                      bool device);
};

}  // namespace sparkinfer
