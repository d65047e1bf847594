#include "cpu/sampler.h"

#include <algorithm>
#include <cmath>

#include "cpu/exponentials.h"
#include "ops/philox.h"

namespace sparkinfer {
namespace {

bool better(const Candidate& a, const Candidate& b) {
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

bool allowed(const uint32_t* mask, int64_t token) { return !mask || (mask[token / 32] >> (token % 32) & 1); }

// Calls f once for each different token of `history`, with how often it is in there.
template <class F>
void for_each_token(std::span<const int32_t> history, int64_t vocabulary, int32_t* counts, F&& f) {
    const auto known = [&](int32_t t) { return t >= 0 && t < vocabulary; };
    for (int32_t t : history)
        if (known(t)) ++counts[t];
    for (int32_t t : history) {
        if (!known(t) || counts[t] == 0) continue;
        f(t, counts[t]);
        counts[t] = 0;
    }
}

// logits -> scratch.logits with everything applied that changes a logit.
void adjust(const SampleInput& in, const SampleScratch& scratch) {
    const int64_t vocabulary = int64_t(in.logits.size());
    const Sampling& s = *in.sampling;
    float* x = scratch.logits;
    for (int64_t i = 0; i < vocabulary; ++i) x[i] = std::isnan(in.logits[i]) ? -INFINITY : in.logits[i];
    if (s.repeat_penalty != 1.0f && s.repeat_last_n != 0) {
        const size_t n = in.history.size(),
                     last = s.repeat_last_n < 0 ? n : std::min(n, size_t(s.repeat_last_n));
        for_each_token(in.history.last(last), vocabulary, scratch.counts, [&](int32_t t, int32_t) {
            x[t] = x[t] > 0 ? x[t] / s.repeat_penalty : x[t] * s.repeat_penalty;
        });
    }
    if (s.presence_penalty != 0.0f || s.frequency_penalty != 0.0f) {
        const size_t prompt = std::min(in.history.size(), size_t(std::max(in.prompt, 0)));
        for_each_token(in.history.subspan(prompt), vocabulary, scratch.counts, [&](int32_t t, int32_t count) {
            x[t] -= s.presence_penalty + float(count) * s.frequency_penalty;
        });
    }
    for (const Bias& b : in.bias)
        if (b.token >= 0 && b.token < vocabulary) x[b.token] += b.value;
    for (int64_t i = 0; i < vocabulary; ++i) x[i] = std::isnan(x[i]) ? -INFINITY : x[i];
    if (!in.mask) return;
    for (int64_t i = 0; i < vocabulary; ++i)
        if (!allowed(in.mask, i)) x[i] = -INFINITY;
}

int32_t lowest_allowed(const SampleInput& in) {
    for (size_t i = 0; i < in.logits.size(); ++i)
        if (allowed(in.mask, int64_t(i))) return int32_t(i);
    return 0;
}

// The lowest id with the greatest logit, or -1 when all are -inf.
int32_t greatest(const float* x, int64_t n) {
    const float most = greatest_value(x, n);
    return most == -INFINITY ? -1 : int32_t(std::find(x, x + n, most) - x);
}

// Candidates of which a growing prefix is sorted, best first: most draws need only the first few.
class Descending {
  public:
    Descending(std::span<Candidate> all, float greatest) : all_(all), greatest_(greatest) {}
    size_t size() const { return all_.size(); }
    const Candidate& operator[](size_t i) {
        while (i >= sorted_) sort_more();
        return all_[i];
    }
    void cut(size_t n) { all_ = all_.first(std::min(n, all_.size())); }
    double weight(const Candidate& c, double temperature) const {
        return std::exp((double(c.logit) - greatest_) / temperature);
    }
    // Σ weight: by ascending id while nothing has been looked at, in descending order once a filter has cut.
    double mass(double temperature) const {
        double sum = 0;
        for (const Candidate& c : all_) sum += weight(c, temperature);
        return sum;
    }

  private:
    void sort_more() {
        const size_t end = std::min(all_.size(), std::max<size_t>(64, sorted_ * 4));
        if (end < all_.size())
            std::nth_element(all_.begin() + sorted_, all_.begin() + end, all_.end(), better);
        std::sort(all_.begin() + sorted_, all_.begin() + end, better);
        sorted_ = end;
    }
    std::span<Candidate> all_;
    double greatest_;
    size_t sorted_ = 0;
};

// The smallest prefix that holds top_p of the probability, at least one candidate.
void keep_top_p(Descending& c, float top_p) {
    const double target = double(top_p) * c.mass(1.0);
    double sum = 0;
    for (size_t i = 0; i < c.size(); ++i) {
        sum += c.weight(c[i], 1.0);
        if (sum >= target) return c.cut(i + 1);
    }
}

// Those at least min_p times as likely as the likeliest.
void keep_min_p(Descending& c, float min_p) {
    const double least = double(c[0].logit) + std::log(double(min_p));
    size_t n = 1;
    while (n < c.size() && double(c[n].logit) >= least) ++n;
    c.cut(n);
}

}  // namespace

int32_t sample(const SampleInput& in, const SampleScratch& scratch) {
    const int64_t vocabulary = int64_t(in.logits.size());
    const Sampling& s = *in.sampling;
    adjust(in, scratch);
    const int32_t best = greatest(scratch.logits, vocabulary);
    if (best < 0) return lowest_allowed(in);
    // An infinite logit leaves nothing to draw.
    if (!(s.temperature > 0) || s.top_k == 1 || std::isinf(scratch.logits[best])) return best;

    int64_t n = 0;
    for (int64_t i = 0; i < vocabulary; ++i)
        if (scratch.logits[i] > -INFINITY) scratch.candidates[n++] = {scratch.logits[i], int32_t(i)};
    Descending c({scratch.candidates, size_t(n)}, scratch.logits[best]);
    if (s.top_k > 0 && s.top_k < n) {
        c[size_t(s.top_k) - 1];  // sorts that far
        c.cut(size_t(s.top_k));
    }
    if (s.top_p < 1.0f) keep_top_p(c, s.top_p);
    if (s.min_p > 0.0f) keep_min_p(c, s.min_p);

    const double target = double(philox_uniform(s.seed, uint32_t(in.index))) * c.mass(s.temperature);
    double sum = 0;
    for (size_t i = 0; i + 1 < c.size(); ++i) {
        sum += c.weight(c[i], s.temperature);
        if (sum > target) return c[i].token;
    }
    return c[c.size() - 1].token;
}

double log_sum_exp(std::span<const float> logits) {
    const auto count = int64_t(logits.size());
    const float most = greatest_value(logits.data(), count);
    if (std::isinf(most)) return most;
    return double(most) + std::log(sum_of_exponentials(logits.data(), count, most));
}

int top_logits(std::span<const float> logits, int n, Candidate* best) {
    int found = 0;
    if (n <= 0) return 0;
    for (size_t i = 0; i < logits.size(); ++i) {
        const Candidate c{logits[i], int32_t(i)};
        if (std::isnan(c.logit) || (found == n && !better(c, best[n - 1]))) continue;
        int at = found < n ? found++ : n - 1;
        for (; at > 0 && better(c, best[at - 1]); --at) best[at] = best[at - 1];
        best[at] = c;
    }
    return found;
}

}  // namespace sparkinfer
