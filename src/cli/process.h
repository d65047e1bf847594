// process.h — another program, run to its end.
#pragma once
#include <string>
#include <vector>

#include "core/result.h"

namespace sparkinfer {

struct ProcessOutput {
    int code = 0;          // its exit code; 128 + n when signal n ended it
    std::string out, err;  // all of stdout, all of stderr
};

// Runs a program (a path, or a name looked up in PATH) with these arguments and an empty stdin. Errors: it
// cannot be started (bad input), more than 64 MiB of output (resources).
Result<ProcessOutput> run_process(const std::vector<std::string>& arguments);

}  // namespace sparkinfer
