// sha256.h — SHA-256 (FIPS 180-4), for naming files by what is in them.
#pragma once
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/result.h"

namespace sparkinfer {

class Sha256 {
  public:
    void update(std::span<const std::byte> bytes);
    // The digest in lower-case hexadecimal. Nothing may be added after it.
    std::string finish();

  private:
    void block(const std::byte* data);  // of 64 bytes
    std::array<uint32_t, 8> state_ = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                      0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
    std::array<std::byte, 64> rest_ = {};
    size_t rest_bytes_ = 0;
    uint64_t bytes_ = 0;
};

// Of the files' bytes one after the other: of one file what `sha256sum` prints. `progress` hears of bytes
// read and ends it by answering false.
Result<std::string> sha256_of_files(const std::vector<std::string>& paths,
                                    const std::function<bool(uint64_t done)>& progress);

}  // namespace sparkinfer
