// histogram.h — counts of durations in fixed buckets, and quantiles of the latest ones. Not thread-safe.
#pragma once
#include <array>
#include <chrono>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace sparkinfer {

class Histogram {
  public:
    // `bounds` ascending, with static storage; `window`: how many of the latest values are kept, 0: none.
    explicit Histogram(std::span<const double> bounds, size_t window = 0)
        : bounds_(bounds), counts_(bounds.size() + 1), window_(window) {}
    void add(double value, double now);

    uint64_t count() const { return count_; }
    double sum() const { return sum_; }
    // "NAME_bucket{LABELS,le="…"} N" …, _sum and _count; LABELS may be empty.
    void print(std::string& text, std::string_view name, std::string_view labels) const;
    // Of the kept values that are at most `age_s` old; NaN where there is none.
    std::vector<double> quantiles(std::span<const double> which, double now, double age_s) const;

  private:
    struct Kept {
        double at, value;
    };
    std::span<const double> bounds_;
    std::vector<uint64_t> counts_;
    uint64_t count_ = 0;
    double sum_ = 0;
    size_t window_, next_ = 0;
    std::vector<Kept> kept_;
};

}  // namespace sparkinfer
