// lowered.h — a tape as launches, and what people are told of them.
#pragma once
#include <string>
#include <vector>

#include "cuda/launch.h"
#include "ops/backend.h"

namespace sparkinfer::cuda {

// The launches of every instruction, in order.
void lower_tape(Lowering& l, const Tape& tape);

// The GPU that --gpu names, as far as choices depend on it; no multiprocessors: not known.
DeviceInfo known_device(const std::string& gpu);

// Rows a tape was recorded at; 0: it does not begin with embed.
int32_t rows_of(const Tape& tape);
// Puts weights in the form in which they will lie, their data where they are: for a dry tape.
void plan_weights(Tape& tape);

// `us`: measured times by launch, or empty.
std::vector<LaunchInfo> launch_infos(const std::vector<Launch>& launches,
                                     const std::vector<std::vector<float>>& us);

// "12 of 152 ops of a step of 1 row run on plain kernels: norm_linear × 12 (Q2_K)"; empty when none does.
std::string plain_notice(const Tape& tape, const std::vector<Launch>& launches);

}  // namespace sparkinfer::cuda
