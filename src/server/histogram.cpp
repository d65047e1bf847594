#include "server/histogram.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

namespace sparkinfer {

void Histogram::add(double value, double now) {
    const auto bucket = std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin();
    ++counts_[size_t(bucket)];
    ++count_;
    sum_ += value;
    if (window_ == 0) return;
    if (kept_.size() < window_)
        kept_.push_back({now, value});
    else
        kept_[next_] = {now, value};
    next_ = (next_ + 1) % window_;
}

void Histogram::print(std::string& text, std::string_view name, std::string_view labels) const {
    const std::string_view comma = labels.empty() ? "" : ",";
    uint64_t below = 0;
    for (size_t i = 0; i < bounds_.size(); ++i) {
        below += counts_[i];
        text += fmt::format("{}_bucket{{{}{}le=\"{}\"}} {}\n", name, labels, comma, bounds_[i], below);
    }
    text += fmt::format("{}_bucket{{{}{}le=\"+Inf\"}} {}\n", name, labels, comma, count_);
    const std::string braces = labels.empty() ? "" : fmt::format("{{{}}}", labels);
    text += fmt::format("{}_sum{} {}\n{}_count{} {}\n", name, braces, sum_, name, braces, count_);
}

std::vector<double> Histogram::quantiles(std::span<const double> which, double now, double age_s) const {
    std::vector<double> values;
    for (const Kept& kept : kept_)
        if (now - kept.at <= age_s) values.push_back(kept.value);
    std::sort(values.begin(), values.end());
    std::vector<double> found;
    for (const double q : which)
        found.push_back(values.empty()
                            ? std::numeric_limits<double>::quiet_NaN()
                            : values[std::min(values.size() - 1, size_t(q * double(values.size())))]);
    return found;
}

}  // namespace sparkinfer
