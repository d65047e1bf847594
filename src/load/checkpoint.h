// checkpoint.h — a model's files as named weights, hiding which container they came from.
//
// open_checkpoint(path) takes a GGUF file, the first piece of a split one, or a folder with config.json and
// safetensors. Everything is validated against the file size before anything is allocated from a number in
// the file; tensors are views into memory maps that the Checkpoint owns.
#pragma once
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/metadata.h"
#include "core/result.h"
#include "quant/quant.h"

namespace sparkinfer {

enum class Container { gguf, safetensors };

// One tensor of the files, as stored.
struct StoredTensor {
    std::string name;
    std::string type;            // the container's own word: "Q4_K", "F8_E4M3"
    std::vector<int64_t> shape;  // outermost first; [] is a scalar
    const std::byte* data = nullptr;
    uint64_t bytes = 0;
    int file = 0;              // index into files()
    uint64_t file_offset = 0;  // bytes from the start of that file
};

int64_t element_count(const StoredTensor& t);
std::string shape_text(const std::vector<int64_t>& shape);  // "[2, 32]"

struct CheckpointFile {
    std::string path;
    uint64_t bytes = 0;
};

class Checkpoint {
  public:
    virtual ~Checkpoint() = default;
    virtual Container container() const = 0;
    const Metadata& metadata() const { return metadata_; }
    const std::string& path() const { return metadata_.source(); }
    const std::vector<CheckpointFile>& files() const { return files_; }
    const std::vector<StoredTensor>& tensors() const { return tensors_; }  // sorted by name
    const StoredTensor* find(std::string_view name) const;                 // null: no such tensor

    // The linear `module` ("blk.0.ffn_gate", "model.layers.0.mlp.gate_proj"), resolved with whatever belongs
    // to it: GGUF: `module`.weight and `module`.scale; safetensors: the layouts of docs/formats.md, decided
    // by tensor names. 2-D tensors give experts = 1, 3-D ones [experts, out, in]. Marks what it used. Fails
    // when it is missing, has a type we do not read, or when its scales are missing, mis-shaped or orphaned.
    virtual Result<Weight> weight(const std::string& module) = 0;
    virtual bool has_weight(const std::string& module) const = 0;

    // Several 2-D linears of one shape and format as one matrix [modules.size(), out, in]: the experts of a
    // layer that lie in the files one by one. Codes and scales that do not already follow each other in the
    // files are copied into memory that the checkpoint owns.
    Result<Weight> stacked(const std::vector<std::string>& modules);

    // A small tensor as float32 values (norms, biases, A_log, convolution taps), any float type, converted.
    // `count` = expected number of elements. Marks it used.
    Result<std::vector<float>> floats(const std::string& name, int64_t count);

    // Tensors nobody asked for, for the loader's "unused" list.
    std::vector<std::string> unused() const;
    void mark_used(std::string_view name);

  protected:
    // The error for a linear that is not there; `companions` are the suffixes whose presence would be odd
    // then.
    Error missing_weight(const std::string& module, const std::vector<std::string>& companions) const;
    // Sets experts, out and in from the shape of `t`, whose rows hold `values_per_element` values per
    // element: [in], [out, in] or [experts, out, in].
    Result<void> set_matrix_shape(const StoredTensor& t, int values_per_element, Weight* w) const;
    // Memory that lives as long as the checkpoint.
    Result<std::byte*> own(uint64_t bytes);
    // The float values of `t`, `experts` or one, as float32 in owned memory; *count says which. Marks it
    // used.
    Result<const float*> owned_floats(const StoredTensor& t, int32_t experts, int32_t* count);

    explicit Checkpoint(Metadata metadata) : metadata_(std::move(metadata)) {}
    Metadata metadata_;
    std::vector<CheckpointFile> files_;
    std::vector<StoredTensor> tensors_;
    std::vector<bool> used_;

  private:
    Result<const void*> adjoin(const std::vector<const void*>& parts, uint64_t part_bytes);
    std::vector<std::unique_ptr<std::byte[]>> owned_;
};

Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::string& path);

}  // namespace sparkinfer
