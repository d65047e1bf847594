// step_image.h — writes one step (ops/step.h) into a host buffer, ready to be copied to the device.
#pragma once
#include <span>
#include <vector>

#include "core/check.h"
#include "ops/step.h"

namespace sparkinfer {

// Most of each thing that one step may carry; the buffer and the device's step memory are sized for it.
struct StepLimits {
    int32_t rows = 0, segments = 0, saves = 0, changes = 0, payload_words = 0;
};

class StepImage {
  public:
    explicit StepImage(const StepLimits& limits) : limits_(limits) {}
    static int64_t bytes_for(const StepLimits& limits);

    void clear();
    int32_t rows() const { return int32_t(rows_.size()); }
    int32_t outputs() const { return int32_t(outputs_.size()); }
    int32_t segments() const { return int32_t(segments_.size()); }
    int32_t saves() const { return int32_t(saves_.size()); }

    // Whether so many more changes with so many words in all still fit.
    bool fits(int32_t changes, int32_t words) const;

    // Appends. A row with kRowOutput is also listed as an output; answers with its place among the rows.
    int32_t add_row(const Row& row);
    void add_segment(const Segment& segment) { segments_.push_back(segment); }
    void add_save(const Save& save) { saves_.push_back(save); }
    void add_change(int32_t slot, int32_t word, std::span<const uint32_t> words);

    // Lays the image out in `buffer`; answers with the part in use. REQUIRES: buffer of bytes_for(limits).
    // `outputs` replaces the list of output rows when given.
    std::span<const std::byte> write(std::span<std::byte> buffer) const { return write(buffer, outputs_); }
    std::span<const std::byte> write(std::span<std::byte> buffer, std::span<const int32_t> outputs) const;

  private:
    StepLimits limits_;
    std::vector<Row> rows_;
    std::vector<Segment> segments_;
    std::vector<int32_t> outputs_;
    std::vector<Save> saves_;
    std::vector<SlotChange> changes_;
    std::vector<uint32_t> payload_;
};

}  // namespace sparkinfer
