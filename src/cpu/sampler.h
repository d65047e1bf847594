// sampler.h — one token out of one row of logits, as a pure function.
//
// The order: repeat penalty, presence and frequency penalties, bias, mask; then greedy at temperature 0,
// otherwise top-k, top-p, min-p (each on the distribution that the one before left, at temperature 1),
// temperature, and one draw by inverting the cumulative distribution in descending order. Ties go to the
// lower id everywhere. A logit that is NaN counts as -inf; when no allowed token is left with a logit above
// -inf, the lowest allowed id is chosen (0 if none is allowed).
#pragma once
#include <cstdint>
#include <span>

#include "ops/step.h"

namespace sparkinfer {

struct SampleInput {
    std::span<const float> logits;  // [V] raw
    const Sampling* sampling;
    std::span<const Bias> bias;        // entries with an id outside [0, V) are ignored
    const uint32_t* mask = nullptr;    // [ceil(V/32)] bit i: token i is allowed; null: all are
    std::span<const int32_t> history;  // prompt and output so far
    int32_t prompt = 0;                // tokens of history that are the prompt
    int32_t index = 0;                 // place of the new token: the random number's counter
};

struct Candidate {
    float logit;
    int32_t token;
};

// Working memory of one sample() at a time.
struct SampleScratch {
    float* logits;          // [V]
    int32_t* counts;        // [V], all zero between calls
    Candidate* candidates;  // [V]
};

int32_t sample(const SampleInput& input, const SampleScratch& scratch);

// log Σ exp(logits), NaN passed over. -inf for a row without a finite logit.
double log_sum_exp(std::span<const float> logits);

// The n best logits, best first, ties to the lower id; fewer when fewer are comparable. Returns how many.
int top_logits(std::span<const float> logits, int n, Candidate* best);

}  // namespace sparkinfer
