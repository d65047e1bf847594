#include "engine/state_pool.h"

#include "ops/state_layout.h"

namespace sparkinfer {

int64_t StatePool::slot_bytes(std::span<const StateLayer> layers, DType dtype) {
    int64_t bytes = 0;
    for (StateLayer layer : layers) {
        layer.dtype = dtype;
        bytes += state_layout(layer).bytes;
    }
    return bytes;
}

StatePool::StatePool(std::span<const StateLayer> layers, DType dtype, Memory memory, int32_t slots)
    : memory_(memory),
      bytes_(slot_bytes(layers, dtype)),
      layers_(layers.begin(), layers.end()),
      pool_(slots) {
    CHECK(memory.bytes >= bytes_ * slots, "{} bytes for {} states of {}", memory.bytes, slots, bytes_);
    std::byte* at = memory.data;
    for (StateLayer& layer : layers_) {
        layer.states = at;
        layer.state_bytes = bytes_;
        layer.dtype = dtype;
        at += state_layout(layer).bytes;
    }
}

}  // namespace sparkinfer
