// lockstep.h — the same steps on two backends, op by op, up to the first op whose outputs differ.
//
// Outputs of an op are the rows of its tensors that belong to the step; the pages that `attention` writes,
// the state that `gated_delta` writes (S, the last inputs of the convolution, the header), the history that
// `embed` writes, the token that `output` chooses and the cursor. Two ways:
//  * synced: after an op has been compared, its outputs on the second backend are overwritten with those of
//    the first. Every op starts from the same inputs, so what is found is its own error, and no bound has to
//    allow for the errors of the ops before it.
//  * not synced: each backend goes on from its own values; for two executors of one backend, whose bits must
//    be equal.
#pragma once
#include <map>
#include <optional>
#include <string>

#include "engine/solo.h"

namespace sparkinfer {

struct LockstepOptions {
    bool synced = true;
    // An op is run as the last one of a tape of all ops up to it, not alone: as it overlaps with its
    // predecessors in a graph. REQUIRES: !synced.
    bool prefixes[2] = {false, false};
    double tolerance = 2e-3;  // most relative L2 error of a row of an output; 0: equal bits. Where
                              // keys, values or states are kept in narrow types, their rounding is allowed
    int32_t chunk = 64;       // prompt tokens a step
    int32_t decode = 4;       // steps of one token behind the prompt, each the first backend's choice
};

// Where the backends first disagree.
struct Difference {
    int32_t step = 0, first = 0, rows = 0;  // the step fed tokens first … first + rows - 1
    int32_t pc = 0;
    std::string op;      // "attention"
    std::string output;  // "y", "keys and values of page 3"
    std::vector<int32_t> shape;
    int32_t row = 0, column = 0;  // the worst element
    double value[2] = {};
    double relative_l2 = 0;  // of its row; infinite for whole numbers that differ, and for nan
};

struct LockstepReport {
    std::optional<Difference> difference;
    int32_t steps = 0;
    int64_t ops = 0;  // compared, in all steps
    // The largest relative L2 error seen of each kind of op, with what was found there.
    std::map<std::string, Difference> largest;
};

// Errors: the backends'. REQUIRES: nothing was fed to either, the same model and plan, a prompt that fits.
Result<LockstepReport> run_lockstep(Solo& a, Solo& b, std::span<const TokenId> prompt,
                                    const LockstepOptions& options);

}  // namespace sparkinfer
