#include "cli/kl_base.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/check.h"

namespace sparkinfer {

namespace {

constexpr char kMagic[] = {'_', 'l', 'o', 'g', 'i', 't', 's', '_'};
constexpr int64_t kHeaderBytes = 20;
constexpr float kRange = 16;                // nat that are kept below the best
constexpr float kRoundedAboveZero = 1e-3f;  // what rounding makes of a log-probability of 0, at most

template <class T>
T read_at(const std::byte* bytes) {
    T value;
    std::memcpy(&value, bytes, sizeof value);
    return value;
}

// log Σ exp(logit), the best logit, and where it is.
struct SoftMax {
    double log_sum = 0;
    float best = 0;
    size_t at = 0;
};
SoftMax soft_max(std::span<const float> logits) {
    SoftMax s;
    s.at = size_t(std::max_element(logits.begin(), logits.end()) - logits.begin());
    s.best = logits[s.at];
    double sum = 0;
    for (const float logit : logits) sum += std::exp(logit - s.best);
    s.log_sum = std::log(sum) + double(s.best);
    return s;
}

struct Mean {
    double value = 0, error = 0;
};
template <class T>
Mean mean_of(const std::vector<T>& values) {
    double sum = 0, squares = 0;
    for (const T value : values) {
        sum += double(value);
        squares += double(value) * double(value);
    }
    const auto n = double(values.size());
    const double mean = sum / n, variance = squares / n - mean * mean;
    return {mean, n > 10 && variance > 0 ? std::sqrt(variance / (n - 1)) : 0};
}

// Of sorted values, between the two next to it.
double percentile(const std::vector<float>& sorted, double share) {
    const double at = share * double(sorted.size() - 1);
    const auto below = size_t(at);
    const double part = at - double(below);
    return (1 - part) * double(sorted[below]) + part * double(sorted[std::min(below + 1, sorted.size() - 1)]);
}

}  // namespace

void encode_kl_row(std::span<const float> logits, std::byte* out) {
    const SoftMax s = soft_max(logits);
    const float least = std::max(*std::min_element(logits.begin(), logits.end()), s.best - kRange);
    const float scale = (s.best - least) / 65535.0f, first = float(double(least) - s.log_sum);
    std::memset(out, 0, size_t(kl_row_bytes(int64_t(logits.size()))));
    std::memcpy(out, &scale, sizeof scale);
    std::memcpy(out + 4, &first, sizeof first);
    if (scale == 0) return;
    const float inverse = 1 / scale;
    for (size_t i = 0; i < logits.size(); ++i) {
        if (logits[i] <= least) continue;
        const auto code = uint16_t(std::min(65535L, std::lrint(inverse * (logits[i] - least))));
        std::memcpy(out + 8 + 2 * i, &code, sizeof code);
    }
}

Result<KlBaseWriter> KlBaseWriter::create(const std::string& path, std::span<const TokenId> tokens,
                                          int64_t window, int64_t vocab) {
    const int64_t windows = int64_t(tokens.size()) / window;
    CHECK(windows * window == int64_t(tokens.size()), "{} tokens in windows of {}", tokens.size(), window);
    TRY(NewFile file, NewFile::create(path));
    KlBaseWriter writer(std::move(file));
    TRY_VOID(writer.file_.reserve(uint64_t(kHeaderBytes + int64_t(tokens.size()) * 4 +
                                           windows * kl_rows(window) * kl_row_bytes(vocab))));
    TRY_VOID(writer.file_.write(std::string_view(kMagic, sizeof kMagic)));
    std::vector<int32_t> words = {int32_t(window), int32_t(vocab), int32_t(windows)};
    for (const TokenId token : tokens) words.push_back(raw(token));
    TRY_VOID(writer.file_.write(std::as_bytes(std::span(words))));
    writer.row_.resize(size_t(kl_row_bytes(vocab)));
    return writer;
}

Result<void> KlBaseWriter::write_row(std::span<const float> logits) {
    encode_kl_row(logits, row_.data());
    return file_.write(row_);
}

Result<KlBase> KlBase::open(const std::string& path) {
    TRY(MappedFile file, MappedFile::open(path));
    const auto size = int64_t(file.size());
    if (size < kHeaderBytes || std::memcmp(file.data(), kMagic, sizeof kMagic) != 0)
        return bad_input(
            "{}: is no file of log-probabilities: it does not start with '_logits_' and a header", path);
    KlBase base(std::move(file));
    const std::byte* bytes = base.file_.data();
    base.window_ = read_at<int32_t>(bytes + 8);
    base.vocab_ = read_at<int32_t>(bytes + 12);
    const int64_t windows = read_at<int32_t>(bytes + 16);
    if (base.window_ < 4 || base.vocab_ < 1 || windows < 1)
        return bad_input(
            "{}: claims {} windows of {} tokens of a vocabulary of {}, expected at least 1, 4 and 1", path,
            windows, base.window_, base.vocab_);
    // Below 2^31 each, so that no product of the first two overflows; the third factor is checked by
    // division.
    const int64_t window_bytes = base.window_ * 4 + kl_rows(base.window_) * kl_row_bytes(base.vocab_);
    if ((size - kHeaderBytes) % window_bytes != 0 || (size - kHeaderBytes) / window_bytes != windows)
        return bad_input("{}: has {} bytes, expected {} + {} windows of {}", path, size, kHeaderBytes,
                         windows, window_bytes);
    const int64_t count = windows * base.window_;
    base.tokens_.reserve(size_t(count));
    for (int64_t i = 0; i < count; ++i) {
        const auto id = read_at<int32_t>(bytes + kHeaderBytes + 4 * i);
        if (id < 0 || id >= base.vocab_)
            return bad_input("{}: token {} is {}, expected an id of the vocabulary, 0 to {}", path, i, id,
                             base.vocab_ - 1);
        base.tokens_.push_back(TokenId(id));
    }
    return base;
}

Result<void> KlBase::log_probabilities(int64_t row, std::span<float> out) const {
    const std::byte* at = file_.data() + kHeaderBytes + 4 * tokens_.size() + row * kl_row_bytes(vocab_);
    const auto scale = read_at<float>(at), least = read_at<float>(at + 4);
    if (!std::isfinite(scale) || !std::isfinite(least) || scale < 0)
        return bad_input("{}: row {} has the scale {} and the least value {}, expected finite numbers",
                         file_.path(), row, scale, least);
    if (const float most = scale * 65535 + least; !(most <= kRoundedAboveZero))
        return bad_input("{}: row {} has log-probabilities up to {}, expected at most 0", file_.path(), row,
                         most);
    for (size_t i = 0; i < out.size(); ++i) out[i] = scale * float(read_at<uint16_t>(at + 8 + 2 * i)) + least;
    return {};
}

void KlStatistics::add(std::span<const float> logits, std::span<const float> base, TokenId token) {
    const SoftMax s = soft_max(logits);
    const auto top = size_t(std::max_element(base.begin(), base.end()) - base.begin());
    double divergence = 0;
    for (size_t i = 0; i < base.size(); ++i) {
        if (base[i] <= -kRange) continue;  // cut off in the file
        divergence += std::exp(double(base[i])) * (double(base[i]) - double(logits[i]) + s.log_sum);
    }
    const auto at = size_t(raw(token));
    const double nll = s.log_sum - double(logits[at]), base_nll = -double(base[at]);
    kl_.push_back(float(divergence));
    p_change_.push_back(float(std::exp(-nll) - std::exp(-base_nll)));
    nll_.push_back(nll);
    base_nll_.push_back(base_nll);
    same_top_ += s.at == top;
}

std::string KlStatistics::perplexity_report() const {
    std::vector<double> ratio(nll_.size());
    for (size_t i = 0; i < nll_.size(); ++i) ratio[i] = nll_[i] - base_nll_[i];
    const Mean model = mean_of(nll_), base = mean_of(base_nll_), change = mean_of(ratio);
    const auto line = [](const char* what, double value, double error) {
        return fmt::format("{:<30}: {:10.6f} ± {:10.6f}\n", what, value, error);
    };
    std::string text = "====== Perplexity statistics ======\n";
    text += line("Mean PPL(Q)", std::exp(model.value), std::exp(model.value) * model.error);
    text += line("Mean PPL(base)", std::exp(base.value), std::exp(base.value) * base.error);
    text += line("Mean ln(PPL(Q)/PPL(base))", change.value, change.error);
    return text +
           line("Mean PPL(Q)/PPL(base)", std::exp(change.value), std::exp(change.value) * change.error);
}

std::string KlStatistics::report() const {
    static constexpr std::pair<const char*, double> kShares[] = {
        {"Maximum", 1}, {"99.9%", 0.999}, {"99.0%", 0.99}, {"95.0%", 0.95},  {"90.0%", 0.9}, {"Median", 0.5},
        {"10.0%", 0.1}, {" 5.0%", 0.05},  {" 1.0%", 0.01}, {" 0.1%", 0.001}, {"Minimum", 0}};
    std::vector<float> kl = kl_, change = p_change_;
    std::sort(kl.begin(), kl.end());
    std::sort(change.begin(), change.end());
    const Mean mean = mean_of(kl_), mean_change = mean_of(p_change_);
    std::string text = perplexity_report() + "\n====== KL divergence statistics ======\n";
    text += fmt::format("Mean    KLD: {:10.6f} ± {:10.6f}\n", mean.value, mean.error);
    for (const auto& [name, share] : kShares)
        text += fmt::format("{:<7} KLD: {:10.6f}\n", name, percentile(kl, share));
    text += "\n====== Token probability statistics ======\n";
    text +=
        fmt::format("Mean    Δp: {:6.3f} ± {:5.3f} %\n", 100 * mean_change.value, 100 * mean_change.error);
    for (const auto& [name, share] : kShares)
        text += fmt::format("{:<7} Δp: {:6.3f}%\n", name, 100 * percentile(change, share));
    std::vector<double> squares(p_change_.begin(), p_change_.end());
    for (double& value : squares) value *= value;
    const Mean square = mean_of(squares);
    const double rms = std::sqrt(square.value);
    text +=
        fmt::format("RMS Δp    : {:6.3f} ± {:5.3f} %\n", 100 * rms, rms > 0 ? 50 / rms * square.error : 0);
    const double n = double(count()), same = double(same_top_) / n;
    return text + fmt::format("Same top p: {:6.3f} ± {:5.3f} %\n", 100 * same,
                              n > 1 ? 100 * std::sqrt(same * (1 - same) / (n - 1)) : 0);
}

}  // namespace sparkinfer
