// gguf_writer.h — lays a GGUF file out: metadata and the table of tensors first, then data that the caller
// streams.
//
//     GgufWriter writer;
//     writer.set("general.architecture", gguf_text("llama"));
//     writer.add({"token_embd.weight", {49152, 576}, 8, bytes});
//     TRY_VOID(writer.begin(file));          // header
//     for each tensor, in order: file.write(data), in as many parts as it likes;
//     TRY_VOID(writer.end_tensor(file));
#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/new_file.h"
#include "core/result.h"

namespace sparkinfer {

// Metadata values as they lie in a file: a u32 type and the bytes.
std::string gguf_u32(uint32_t value);
std::string gguf_i32(int32_t value);
std::string gguf_f32(float value);
std::string gguf_bool(bool value);
std::string gguf_text(std::string_view value);
std::string gguf_texts(const std::vector<std::string>& values);
std::string gguf_i32s(const std::vector<int32_t>& values);
std::string gguf_bools(const std::vector<bool>& values);

// Writes version 3 with an alignment of 32 bytes. REQUIRES: no key general.alignment.
class GgufWriter {
  public:
    struct Tensor {
        std::string name;
        std::vector<int64_t> shape;  // outermost first
        uint32_t type_id = 0;        // ggml's
        uint64_t bytes = 0;
    };

    // A new entry at the end, or a new value for one that is there.
    void set(std::string_view key, std::string value);
    void erase(std::string_view key);
    void add(Tensor tensor) { tensors_.push_back(std::move(tensor)); }
    const std::vector<Tensor>& tensors() const { return tensors_; }

    uint64_t file_bytes() const;  // of the whole file
    // The header, padded to where data begins. Afterwards the tensors' data come in the order they were
    // added.
    Result<void> begin(NewFile& file);
    // Pads behind a tensor. REQUIRES: exactly its bytes were written.
    Result<void> end_tensor(NewFile& file);

  private:
    struct Entry {
        std::string key, value;
    };
    std::string header() const;

    std::vector<Entry> entries_;
    std::vector<Tensor> tensors_;
    size_t next_ = 0;        // tensor whose data are written
    uint64_t expected_ = 0;  // bytes of the file when it is
};

}  // namespace sparkinfer
