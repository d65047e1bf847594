// backend.h — a machine that executes tapes. No virtual function is per op; one backend per device.
//
// Threads: one engine thread calls everything here. Work is asynchronous: execute(), copy() and copy_out()
// return at once with a ticket, done() tells. Steps and copies run in order, copies out beside them.
#pragma once
#include <atomic>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "core/result.h"
#include "ops/host_block.h"
#include "ops/tape.h"

namespace sparkinfer {

enum class MemoryKind { arena, kv, state, slots, step, results };

// Memory that lives as long as its backend. `host` is set when the host may read and write `data` directly.
struct Memory {
    std::byte* data = nullptr;
    int64_t bytes = 0;
    bool host = false;
};

// The parameters that one op reads together, as the files hold them (host views), in the order it reads them.
struct WeightGroup {
    OpCode op;
    std::vector<Weight> weights;
};

// Where a backend gets the bytes of a host view without touching the memory map: pread of the file behind it.
struct ByteSource {
    // Tells sources apart: a view's address may come back in a later model's files.
    const uint64_t id = next_id();
    virtual ~ByteSource() = default;
    // Fills `to` with the bytes at `view`: all of them, or an error. Threads: any, several at once.
    virtual Result<void> read(const void* view, std::span<std::byte> to) = 0;

  private:
    static uint64_t next_id() {
        static std::atomic<uint64_t> count = 0;
        return ++count;
    }
};

// What a model takes of a backend's memory beside what allocate() is asked for. Bytes.
struct MemoryNeed {
    int64_t weights = 0;     // that placing them keeps; 0: they stay in the memory map of their files
    int64_t staging = 0;     // that placing them takes beside that, and gives back
    int64_t scratch = 0;     // that the ops of all tapes share
    int64_t graphs = 0;      // of captured tapes and the code of their kernels, estimated
    int64_t available = -1;  // that can be had now, in all; -1: unknown
};

// Hears of bytes of weights that have been placed.
using PlaceProgress = std::function<void(int64_t done, int64_t total)>;

struct Compiled {
    int32_t id = -1;
};
struct Ticket {
    int64_t id = 0;     // tickets complete in ascending order within their queue; 0: nothing, complete
    int32_t queue = 0;  // 0: steps and copies
};

// One kernel of a compiled tape, for people to read.
struct LaunchInfo {
    int32_t pc = 0;       // the instruction it is part of
    std::string variant;  // what the backend calls it: "slab", "generic"
    double us = 0;        // median time; 0 unless the backend was made to measure
    int32_t count = 0;    // times measured
};

// What the values between ops become where quantised weights multiply them: stay as they are, or integers
// with one scale for each few values.
enum class Activations : uint8_t { f32, int16, int8 };
inline const char* activations_name(Activations a) {
    return a == Activations::f32 ? "f32" : a == Activations::int16 ? "int16" : "int8";
}

struct BackendInfo {
    std::string name;                 // "cpu"
    std::string device;               // what the machine calls itself
    std::string bus_id;               // of a device of its own: where it is on the PCI bus, "0000:19:00.0"
    std::string activations = "f32";  // fewest bits that weights are multiplied with
    int64_t memory_bytes = 0;         // that can be allocated in all
    DType kv_type = DType::f32;       // what KV pages are kept in by default
    DType state_type = DType::f32;    // what S of recurrent states is kept in
    bool captures = false;            // compiling a tape is costly: rows are padded to a few classes
    int32_t chunk = 512;              // prompt rows of a step that make good use of it
    bool host_memory = false;  // it computes in the host's memory, so that memory's size and speed bind it
    // Sentences the user should know, complete once the weights are placed: what lies or runs in a slower
    // form.
    std::vector<std::string> notices;
};

class Backend {
  public:
    virtual ~Backend() = default;
    virtual const BackendInfo& info() const = 0;
    // Zeroed memory; all of it before the first request.
    virtual Result<Memory> allocate(int64_t bytes, MemoryKind kind) = 0;
    // Streams a group in, lays it out, repacks it; answers with the weights to use in tapes, in the same
    // order. Empty entries (no data) stay empty. A weight given twice is placed once.
    virtual Result<std::vector<Weight>> place(const WeightGroup& group, ByteSource& source) = 0;
    // Places all groups of a model. A backend that overrides it reads one while it repacks another.
    // `progress` (may be empty) is called on the calling thread.
    virtual Result<std::vector<std::vector<Weight>>> place_all(std::span<const WeightGroup> groups,
                                                               ByteSource& source,
                                                               const PlaceProgress& progress);
    // What placing these groups and compiling these tapes will take. The tapes are dry recordings, their
    // weights as the files hold them; the first compile() after it takes the scratch for all of them.
    virtual Result<MemoryNeed> plan(std::span<const WeightGroup> groups, std::span<const Tape> tapes);
    // Chooses variants and prepares launches. The tape's addresses must be of this backend's memory.
    virtual Result<Compiled> compile(const Tape& tape) = 0;
    // What a compiled tape consists of, in order; nothing when the backend does not tell.
    virtual std::vector<LaunchInfo> launches(const Compiled&) const { return {}; }
    // Copies the step image to the tape's step address, then runs the tape.
    virtual Result<Ticket> execute(const Compiled& compiled, std::span<const std::byte> step) = 0;
    // Copies between this backend's memory and the host's, or within it, after `after` has completed.
    virtual Result<Ticket> copy(std::span<std::byte> to, std::span<const std::byte> from, Ticket after) = 0;
    // Copies a block to the host once `after` has completed, beside the steps; what is queued later waits for
    // it and may write `from`. An error, of this or of done(), means that the block is not there.
    virtual Result<Ticket> copy_out(std::span<std::byte> to, std::span<const std::byte> from, Ticket after) {
        return copy(to, from, after);
    }
    // What the work up to `after` has left: there when it returns, without waiting for what is queued behind.
    virtual Result<void> read(std::span<std::byte> to, std::span<const std::byte> from, Ticket after);
    // Host memory that copies of this backend reach fastest, not initialised; null: none is left. It may
    // outlive the backend.
    virtual HostBlock host_block(size_t bytes) { return plain_host_block(bytes); }
    // Whether the ticket has completed; with `wait`, not before it has. An error is the device's.
    virtual Result<bool> done(Ticket ticket, bool wait) = 0;
    // Forgets a compiled tape. REQUIRES: every step that executes it is done.
    virtual void release(const Compiled&) {}
};

}  // namespace sparkinfer
