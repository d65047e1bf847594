// compare_logits.h — rows of logits against the same rows of a reference: divergence and best tokens.
#pragma once
#include <gtest/gtest.h>

#include <cmath>
#include <span>
#include <vector>

namespace sparkinfer::test {

// Logits by token index; rows that nobody gave are empty.
using LogitRows = std::vector<std::vector<float>>;
inline void keep_row(LogitRows& rows, int i, std::span<const float> row) {
    if (int(rows.size()) <= i) rows.resize(size_t(i) + 1);
    rows[size_t(i)].assign(row.begin(), row.end());
}

// The greatest logit, the second, and log Σ exp.
struct RowFacts {
    size_t best = 0;
    double first = -INFINITY, second = -INFINITY, log_sum = 0;
    explicit RowFacts(std::span<const float> row) {
        for (size_t i = 0; i < row.size(); ++i) {
            const double x = double(row[i]);
            if (x > first)
                second = first, first = x, best = i;
            else if (x > second)
                second = x;
        }
        double sum = 0;
        for (const float x : row) sum += double(std::exp(x - float(first)));
        log_sum = first + std::log(sum);
    }
    double lead() const { return first - second; }
};

// KL(reference ‖ other), row by row.
class Comparison {
  public:
    explicit Comparison(double margin) : margin_(margin) {}

    void add(int i, std::span<const float> want, std::span<const float> got) {
        ASSERT_EQ(want.size(), got.size()) << "row " << i;
        for (size_t j = 0; j < got.size(); ++j)
            ASSERT_TRUE(std::isfinite(got[j])) << "row " << i << " token " << j;
        const RowFacts a(want), b(got);
        double kl = 0;
        for (size_t j = 0; j < want.size(); ++j) {
            const double log_p = double(want[j]) - a.log_sum;
            if (log_p > -40) kl += double(std::exp(float(log_p))) * (log_p - (double(got[j]) - b.log_sum));
        }
        ++rows_;
        sum_ += kl;
        if (kl > worst_) worst_ = kl, worst_at_ = i;
        same_ += a.best == b.best;
        if (a.lead() > margin_) ++sure_, differ_ += a.best != b.best;
    }
    double mean() const { return rows_ ? sum_ / rows_ : INFINITY; }
    int rows() const { return rows_; }

    // Prints one line, and fails where the mean is above `most` or more than `share` of the tokens differ
    // that the reference is sure of.
    void expect(const std::string& what, double most, double share = 0) const {
        printf(
            "    %s: mean KL %.2e over %d rows, worst %.2e at %d, best token equal in %.4f, %d of %d differ "
            "where "
            "the lead is above %g\n",
            what.c_str(), mean(), rows_, worst_, worst_at_, rows_ ? double(same_) / rows_ : 0, differ_, sure_,
            margin_);
        EXPECT_LE(mean(), most) << what;
        EXPECT_LE(differ_, share * sure_)
            << what << ": best tokens that differ where the reference leads by " << margin_;
    }

  private:
    double margin_, sum_ = 0, worst_ = 0;
    int rows_ = 0, worst_at_ = -1, same_ = 0, sure_ = 0, differ_ = 0;
};

}  // namespace sparkinfer::test
