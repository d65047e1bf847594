// block_mover.h — copies of pages and states between a device and the host, as the prefix cache asks for
// them.
#pragma once
#include <span>

#include "ops/backend.h"

namespace sparkinfer {

struct BlockMove {
    std::span<std::byte> to;
    std::span<const std::byte> from;
};

// Queues copies and waits for none. Both ends of a copy stay until its ticket has completed.
class BlockMover {
  public:
    virtual ~BlockMover() = default;
    // To the host, once `after` has completed. Steps queued later may write `from`: they wait for it. An
    // error, of this or of done(), means that it has not come.
    virtual Result<Ticket> out(const BlockMove& move, Ticket after) = 0;
    // All to the device. Steps queued later wait for it; it waits for those before.
    virtual Result<Ticket> in(std::span<const BlockMove> moves) = 0;
    // The newest piece of work that was queued in order with the steps.
    virtual Ticket newest() const = 0;
    virtual Result<bool> done(Ticket ticket, bool wait) = 0;
    virtual HostBlock host_block(size_t bytes) = 0;
};

}  // namespace sparkinfer
