// state_pool.h — the recurrent states of all sequences: slots of equal size with reference counts.
//
// One slot holds every recurrent layer's part (ops/state_layout.h). A checkpoint is one more reference.
// Whoever advances a state that others hold too, or that may have to be taken back, writes its successor into
// another slot.
#pragma once
#include <span>
#include <vector>

#include "core/result.h"
#include "engine/ref_pool.h"
#include "ops/backend.h"

namespace sparkinfer {

class StatePool {
  public:
    // Bytes of one slot; 0: the model has no recurrent layer.
    static int64_t slot_bytes(std::span<const StateLayer> layers, DType dtype);

    // Makes the layers refer to `memory`, which holds `slots` states with S in `dtype`. `layers` as in
    // ModelShape.
    StatePool(std::span<const StateLayer> layers, DType dtype, Memory memory, int32_t slots);

    const std::vector<StateLayer>& layers() const { return layers_; }
    int64_t bytes_each() const { return bytes_; }
    std::span<std::byte> bytes(int32_t state) const {
        return {memory_.data + state * bytes_, size_t(bytes_)};
    }
    bool used() const { return !layers_.empty(); }
    RefPool& pool() { return pool_; }
    const RefPool& pool() const { return pool_; }

  private:
    Memory memory_;
    int64_t bytes_;
    std::vector<StateLayer> layers_;
    RefPool pool_;
};

}  // namespace sparkinfer
