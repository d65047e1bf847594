// slots.h — what the host writes into a slot record: always through a step's changes, never directly.
//
// The cursor belongs to the device; the host sets it only when a sequence takes the slot or is set back.
#pragma once
#include <span>

#include "engine/step_image.h"

namespace sparkinfer {

class SlotWriter {
  public:
    SlotWriter(StepImage& image, int32_t slot, int32_t max_pages)
        : image_(image), slot_(slot), max_pages_(max_pages) {}

    void cursor(const Cursor& cursor) { words(0, std::span(&cursor, 1)); }
    void sampling(const Sampling& sampling) { words(offsetof(Slot, sampling), std::span(&sampling, 1)); }
    void stop_ids(std::span<const int32_t> ids) { words(offsetof(Slot, stop_id), ids); }
    void biases(std::span<const Bias> biases) { words(offsetof(Slot, bias), biases); }
    void pages(int32_t first, std::span<const int32_t> pages) {
        words(sizeof(Slot) + 4 * size_t(first), pages);
    }
    void history(int32_t first, std::span<const int32_t> tokens) {
        words(sizeof(Slot) + 4 * (size_t(max_pages_) + size_t(first)), tokens);
    }

  private:
    template <class T>
    void words(size_t byte, std::span<const T> values) {
        static_assert(sizeof(T) % 4 == 0);
        image_.add_change(slot_, int32_t(byte / 4),
                          {reinterpret_cast<const uint32_t*>(values.data()), values.size_bytes() / 4});
    }
    StepImage& image_;
    int32_t slot_, max_pages_;
};

constexpr int32_t kSlotWords = int32_t(sizeof(Slot) / 4);
constexpr int32_t kAdmissionChanges = 6;  // cursor, sampling, stop ids, biases, pages, history

}  // namespace sparkinfer
