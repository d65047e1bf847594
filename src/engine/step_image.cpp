#include "engine/step_image.h"

#include <cstring>

namespace sparkinfer {
namespace {

constexpr int64_t align_16(int64_t n) { return (n + 15) / 16 * 16; }

// Copies a list to offset `at` of the buffer and moves `at` behind it.
template <class T>
int32_t place(std::span<std::byte> buffer, int64_t& at, std::span<const T> list) {
    const int64_t start = at;
    CHECK(start + int64_t(list.size_bytes()) <= int64_t(buffer.size()), "a step image of more than {} bytes",
          buffer.size());
    if (!list.empty()) std::memcpy(buffer.data() + start, list.data(), list.size_bytes());
    at = align_16(start + int64_t(list.size_bytes()));
    return int32_t(start);
}

}  // namespace

int64_t StepImage::bytes_for(const StepLimits& l) {
    return int64_t(sizeof(StepHeader)) + align_16(int64_t(l.rows) * int64_t(sizeof(Row))) +
           align_16(int64_t(l.segments) * int64_t(sizeof(Segment))) + align_16(int64_t(l.rows) * 4) +
           align_16(int64_t(l.saves) * int64_t(sizeof(Save))) +
           align_16(int64_t(l.changes) * int64_t(sizeof(SlotChange))) +
           align_16(int64_t(l.payload_words) * 4);
}

void StepImage::clear() {
    rows_.clear();
    segments_.clear();
    outputs_.clear();
    saves_.clear();
    changes_.clear();
    payload_.clear();
}

bool StepImage::fits(int32_t changes, int32_t words) const {
    return int64_t(changes_.size()) + changes <= limits_.changes &&
           int64_t(payload_.size()) + words <= limits_.payload_words;
}

int32_t StepImage::add_row(const Row& row) {
    const int32_t r = rows();
    rows_.push_back(row);
    if (row.flags & kRowOutput) outputs_.push_back(r);
    return r;
}

void StepImage::add_change(int32_t slot, int32_t word, std::span<const uint32_t> words) {
    if (words.empty()) return;
    changes_.push_back({slot, word, int32_t(words.size()), int32_t(payload_.size())});
    payload_.insert(payload_.end(), words.begin(), words.end());
}

std::span<const std::byte> StepImage::write(std::span<std::byte> buffer,
                                            std::span<const int32_t> outputs) const {
    CHECK(rows() <= limits_.rows && segments() <= limits_.segments &&
              int32_t(saves_.size()) <= limits_.saves && fits(0, 0),
          "a step of {} rows, {} segments, {} saves, {} changes", rows(), segments(), saves_.size(),
          changes_.size());
    StepHeader h{};
    h.rows = rows();
    h.segments = segments();
    h.outputs = int32_t(outputs.size());
    h.saves = int32_t(saves_.size());
    h.changes = int32_t(changes_.size());
    h.payload_words = int32_t(payload_.size());
    int64_t at = sizeof(StepHeader);
    h.rows_at = place<Row>(buffer, at, rows_);
    h.segments_at = place<Segment>(buffer, at, segments_);
    h.outputs_at = place<int32_t>(buffer, at, outputs);
    h.saves_at = place<Save>(buffer, at, saves_);
    h.changes_at = place<SlotChange>(buffer, at, changes_);
    h.payload_at = place<uint32_t>(buffer, at, payload_);
    h.bytes = int32_t(at);
    std::memcpy(buffer.data(), &h, sizeof h);
    return buffer.first(size_t(at));
}

}  // namespace sparkinfer
