// placement.h — weights on their way to the device: read through pinned memory, repacked to slabs where an op
// has a form for them, otherwise kept as the file has them.
#pragma once
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device.h"
#include "cuda/repack.h"
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
    ~Placement();

    Result<void> open();
    Result<std::vector<Weight>> place(const WeightGroup& group, ByteSource& source);
    // Gives the scratch memory of repacking back: call when all weights are placed.
    void close();

    // Device memory that lives as long as this does.
    Result<std::byte*> device_bytes(int64_t bytes);
    int64_t bytes_held() const { return held_; }
    // Tensors whose scales did not survive a common power of two, kept as the file has them.
    int32_t kept_raw() const { return kept_raw_; }

  private:
    struct Rows {  // a run of raw rows in the files
        const std::byte* view;
        int64_t bytes;
    };
    Result<void> read(const Rows& rows, std::byte* to, ByteSource& source);
    Result<std::byte*> pooled(int64_t bytes);
    Result<const void*> upload(const void* view, int64_t bytes, ByteSource& source);
    Result<Weight> place_raw(Weight w, ByteSource& source);
    Result<bool> place_slabs(Weight* w, Weight* up, ByteSource& source);
    Result<void> raw_scratch(int64_t bytes);

    cudaStream_t stream_;
    std::byte* stage_ = nullptr;  // pinned, two halves
    cudaEvent_t half_free_[2] = {};
    int half_ = 0;
    std::byte* raw_ = nullptr;  // device scratch of raw rows
    int64_t raw_bytes_ = 0;
    struct Facts {
        ScaleRange range;
        int32_t lossy, reserved;
    };
    Facts* facts_ = nullptr;  // device
    std::vector<void*> allocations_;
    std::byte* pool_ = nullptr;
    int64_t pool_left_ = 0, held_ = 0;
    int32_t kept_raw_ = 0;
    std::map<std::pair<uint64_t, const void*>, const void*> placed_;  // raw, by source and view
    std::map<std::pair<uint64_t, const void*>, Weight> slabs_;        // slabs, by source and view
};

}  // namespace sparkinfer::cuda
