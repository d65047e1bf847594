// gguf.h — the GGUF container: metadata and a table of tensors in one file, or the same split over several.
// docs/formats.md shows the bytes.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "core/metadata.h"
#include "core/result.h"
#include "load/checkpoint.h"

namespace sparkinfer {

// What one GGUF file says. The tensors' `data` point into the bytes given to parse_gguf.
struct GgufContents {
    Metadata metadata;
    std::vector<StoredTensor> tensors;  // in file order
    std::vector<uint32_t> type_ids;     // ggml type of each tensor
    uint32_t version = 0;
    uint64_t data_start = 0;  // bytes from the start of the file
};

// Reads and validates metadata and tensor table of one file of `bytes`; touches no tensor data. `path` is for
// messages. Everything is checked against the number of bytes before it is used or allocated.
Result<GgufContents> parse_gguf(std::span<const std::byte> bytes, const std::string& path);

// Opens a GGUF file, or all pieces of a split one given the first.
Result<std::unique_ptr<Checkpoint>> open_gguf(const std::string& path);

}  // namespace sparkinfer
