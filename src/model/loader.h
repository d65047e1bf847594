// loader.h — a model's weights by name, from either container, with every shape checked; problems are
// collected so that one error lists them all.
#pragma once
#include <deque>
#include <string>
#include <vector>

#include "load/checkpoint.h"
#include "model/config.h"

namespace sparkinfer {

// Float vectors that weights of a model view (norm gains, decays, frequencies).
using FloatStore = std::deque<std::vector<float>>;

class Loader {
  public:
    Loader(Checkpoint& checkpoint, const Config& config, FloatStore& store);

    // Names of the two containers for one tensor; inside a layer they get the layer's prefix.
    struct Name {
        std::string gguf, hf;
    };
    // "blk.3." or "model.layers.3." before each name from now on; -1: no prefix.
    void enter_layer(int32_t layer);

    Weight matrix(const Name& module, int32_t out, int32_t in);                    // [out, in]
    Weight experts(const Name& module, int32_t experts, int32_t out, int32_t in);  // [experts, out, in]
    // Gate and up of all experts, fused in one tensor or not.
    void experts_gate_up(int32_t experts, int32_t ffn, int32_t dim, Weight* gate, Weight* up);

    enum class Transform { none, plus_one, minus_exp };
    Weight vector(const Name& tensor, int32_t n, Transform transform = Transform::none);  // [1, n] F32
    Weight taps(const Name& tensor, int32_t channels, int32_t taps);  // [channels, taps] F32
    Weight own(std::vector<float> values, int32_t out, int32_t in);   // [out, in] F32
    bool has(const Name& tensor) const;
    std::vector<float> optional_floats(const Name& tensor, int32_t n);  // empty when absent

    const std::string& path() const { return checkpoint_.path(); }
    int64_t parameters() const { return parameters_; }
    // After everything was asked for: one error that lists missing, mis-shaped and unexpected tensors, or the
    // names of tensors kept aside (the MTP block, vision, scales of other precisions).
    Result<std::vector<std::string>> finish();

  private:
    std::string pick(const Name& name) const;
    void problem(const Error& error);
    void problem(std::string sentence);
    Weight checked(const std::string& module, Result<Weight> found, int32_t experts, int32_t out, int32_t in);

    Checkpoint& checkpoint_;
    const Config& config_;
    FloatStore& store_;
    std::string prefix_, root_;
    std::vector<std::string> problems_;
    std::vector<std::string> missing_;
    int64_t parameters_ = 0;
};

}  // namespace sparkinfer
