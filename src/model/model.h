// model.h — an architecture: its shape, and its forward pass as one function over the tape's vocabulary.
//
// A model is made from a checkpoint alone: configuration from the file's metadata, every tensor's shape
// checked against it, every missing tensor named. Weights stay views of the checkpoint until a backend places
// them.
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "core/result.h"
#include "load/checkpoint.h"
#include "ops/tape.h"

namespace sparkinfer {

// What an engine must know to give a model memory: sizes, no weights.
struct ModelShape {
    std::string architecture;       // "qwen35moe"
    int32_t dim = 0;                // D
    int32_t vocab = 0;              // V, rows of the head
    int32_t context = 0;            // tokens the model was made for
    int32_t layers = 0;             // main layers, without the MTP block
    int32_t heads = 0;              // H
    std::vector<KvLayer> kv;        // attention layers in order; `pages` and `page_bytes` not yet set
    std::vector<StateLayer> state;  // recurrent layers in order; `states` and `state_bytes` not yet set
    int64_t parameters = 0;         // elements of all tensors used
};

class Model {
  public:
    virtual ~Model() = default;
    const ModelShape& shape() const { return shape_; }
    // Tensors of the files that the forward pass does not use (the MTP block, vision, …).
    const std::vector<std::string>& unused() const { return unused_; }
    // Records one step. REQUIRES: batch.kv and batch.state have the shape's layers, with their memory set.
    virtual void forward(Tape& t, const Batch& batch) const = 0;

  protected:
    ModelShape shape_;
    std::vector<std::string> unused_;
};

// Makes the model that the checkpoint's architecture names. The checkpoint must outlive the model.
// Errors: unknown architecture (with the known ones), missing or mis-shaped tensors (named), bad
// configuration.
Result<std::unique_ptr<Model>> load_model(Checkpoint& checkpoint);

}  // namespace sparkinfer
