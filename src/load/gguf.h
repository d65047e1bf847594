// gguf.h — the GGUF container: metadata and a table of tensors in one file, or the same split over several.
// docs/formats.md shows the bytes.
#pragma once
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/metadata.h"
#include "core/result.h"
#include "load/checkpoint.h"

namespace sparkinfer {

// Types of metadata values as they lie in the file.
enum class GgufType : uint32_t {
    u8 = 0,
    i8 = 1,
    u16 = 2,
    i16 = 3,
    u32 = 4,
    i32 = 5,
    f32 = 6,
    boolean = 7,
    string = 8,
    array = 9,
    u64 = 10,
    i64 = 11,
    f64 = 12,
};

// A metadata entry with its value as it lies in the file, in the number type the file chose: Metadata widens
// that.
struct GgufEntry {
    std::string_view key, value;  // the value's u32 type, then its bytes
};

// What one GGUF file says. The tensors' `data` and the entries point into the bytes given to parse_gguf.
struct GgufContents {
    Metadata metadata;
    std::vector<GgufEntry> entries;     // in file order
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
