// explain.h — what a recorded tape must move and compute, told from operands alone: no device, no weights
// read.
//
// Bytes are a floor: weights that the step touches (of E experts the expected number of distinct ones), keys
// and values, recurrent state; each once. Activations are left out, because a backend may keep them on chip.
#pragma once
#include <string>
#include <vector>

#include "ops/tape.h"

namespace sparkinfer {

// The step that a tape is thought to run: its rows are consecutive tokens of one sequence.
struct StepSize {
    int32_t rows = 1;     // present rows, ≤ the tape's
    int64_t depth = 0;    // tokens of the sequence before the first row
    int32_t outputs = 1;  // rows that want output
};

struct OpCost {
    double weight_bytes = 0;  // codes and scales; a fraction of the experts, hence no integer
    double kv_bytes = 0;      // read and written
    double state_bytes = 0;   // read and written
    double flops = 0;         // multiplications and additions
    double bytes() const { return weight_bytes + kv_bytes + state_bytes; }
    OpCost& operator+=(const OpCost& other);
};

OpCost op_cost(const Instr& instr, const StepSize& size);
OpCost tape_cost(const Tape& tape, const StepSize& size);

// One line of the table.
struct ExplainRow {
    int32_t pc = 0;
    std::string op;      // "norm_linear"
    std::string shapes;  // "[1, 576] · [576|192|192, 576]"
    std::string quant;   // "Q4_1", "Q4_K+Q6_K": of the matrices; of the vectors where there are no matrices
    OpCost cost;
};
std::vector<ExplainRow> explain(const Tape& tape, const StepSize& size);

// Experts that are expected to be used at least once when `rows` rows pick `used` of `experts` evenly:
// E (1 − (1 − K/E)^T).
double expected_experts(int32_t experts, int32_t used, int32_t rows);

}  // namespace sparkinfer
