// validate.h — proves of a recorded tape what recording cannot see in one op alone.
//
// For every instruction: all its weights are there and well formed; shapes agree, within the op and with the
// rows of the tape; everything it reads was written before and not overwritten since (so that no two live
// temporaries share memory; a reader of memory that a later tensor of the same pitch covers cannot be told
// from a view of it); what it writes overlaps neither its inputs nor its other outputs, except where the op
// says so.
#pragma once
#include "core/result.h"
#include "ops/tape.h"

namespace sparkinfer {

// OK, or an internal error "pc 12 linear_add: …" for the first instruction that breaks a rule.
Result<void> validate(const Tape& tape);

}  // namespace sparkinfer
