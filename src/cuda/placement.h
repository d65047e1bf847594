// placement.h — where weights lie on the device, and in which form: slabs where an op has a form for them,
// otherwise as the file has them. All weights of a model lie in one piece of memory.
#pragma once
#include <map>
#include <span>
#include <utility>
#include <vector>

#include "cuda/device.h"
#include "cuda/upload.h"
#include "ops/backend.h"

namespace sparkinfer::cuda {

// How a weight is laid out: as the file has it, or as slabs, of its own or shared by a gate and its up.
enum class Form { raw, slabs, gate, up };
// Of each weight of a group, unless a scale would lose bits.
std::vector<Form> planned_forms(const WeightGroup& group);
// The weights as Placement::place() would answer, told from shapes and formats alone: their data stay where
// they are. For lowering a tape without a GPU.
std::vector<Weight> planned_weights(const WeightGroup& group);

class Placement {
  public:
    explicit Placement(cudaStream_t stream) : stream_(stream) {}
    Placement(const Placement&) = delete;
    Placement& operator=(const Placement&) = delete;
    ~Placement();

    // What place() will take of the device for groups of a source that it has not seen.
    static int64_t bytes_for(std::span<const WeightGroup> groups);
    Result<std::vector<std::vector<Weight>>> place(std::span<const WeightGroup> groups, ByteSource& source,
                                                   const PlaceProgress& progress);

    // Device memory that lives as long as this does. An error tells when there is less than free_expected()
    // promised.
    Result<std::byte*> device_bytes(int64_t bytes);
    int64_t bytes_held() const { return held_; }
    // Remembers what is free now, for that error.
    void expect_free(int64_t bytes) { free_expected_ = bytes + held_; }
    // Tensors whose scales did not survive a common power of two, kept as the file has them.
    int32_t kept_raw() const { return kept_raw_; }

  private:
    using Key = std::pair<uint64_t, const void*>;  // source and view
    struct Known {
        std::map<Key, const std::byte*> plain;
        std::map<Key, std::pair<Weight, Weight>> slabs;  // a weight, or a gate and its up
    };
    struct Layout;
    Result<std::byte*> pooled(int64_t bytes);
    Result<void> keep_raw(Layout& layout, ByteSource& source);

    cudaStream_t stream_;
    std::vector<void*> allocations_;
    std::byte* pool_ = nullptr;
    int64_t pool_left_ = 0, held_ = 0;
    int64_t free_expected_ = -1;  // what was free and what was held when somebody looked; -1: nobody has
    int32_t kept_raw_ = 0;
    Known known_;
};

}  // namespace sparkinfer::cuda
