// weights.h — the way of a model's weights from its files to a backend, and into tapes.
//
// A dry tape says which weights one op reads together; each such group is placed once. Recorded tapes name
// weights by their host addresses; `bind` puts the placed ones in their stead.
#pragma once
#include <functional>
#include <map>
#include <mutex>
#include <tuple>

#include "model/model.h"
#include "ops/backend.h"

namespace sparkinfer {

// Reads views of a checkpoint's tensors from the files behind the memory map; any other view is plain memory.
// Threads: any, several at once.
class CheckpointBytes : public ByteSource {
  public:
    explicit CheckpointBytes(const Checkpoint& checkpoint);
    ~CheckpointBytes() override;
    CheckpointBytes(const CheckpointBytes&) = delete;
    CheckpointBytes& operator=(const CheckpointBytes&) = delete;
    Result<void> read(const void* view, std::span<std::byte> to) override;

  private:
    Result<int> file(int index);
    const Checkpoint& checkpoint_;
    std::map<const std::byte*, const StoredTensor*> tensors_;  // by first byte
    std::mutex mutex_;                                         // guards files_
    std::vector<int> files_;                                   // descriptors; -1: not open
};

class PlacedWeights {
  public:
    // What place() will give to the backend: each group of the tape once.
    static std::vector<WeightGroup> groups(const Tape& tape);
    // Places every weight of the tape. Errors are the backend's and the source's.
    Result<void> place(const Tape& tape, Backend& backend, ByteSource& source, const PlaceProgress& progress);
    // Replaces the host weights of a recorded tape. REQUIRES: all of them were in the tape given to place().
    void bind(Tape& tape) const;

  private:
    // The same bytes may be laid out differently for two ops: a table that `embed` and the head share.
    using Key = std::tuple<OpCode, const void*, int32_t, int32_t>;  // op, data, out, in
    static Key key(OpCode op, const Weight& w) { return {op, w.data, w.out, w.in}; }
    std::map<Key, Weight> placed_;
};

}  // namespace sparkinfer
