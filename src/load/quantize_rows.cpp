#include "load/quantize_rows.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <mutex>
#include <optional>
#include <thread>

#include "core/check.h"
#include "quant/decode.h"
#include "quant/encode.h"

namespace sparkinfer {

namespace {

constexpr int64_t kRowsAtOnce = 16;

// The rows of a tensor as one matrix.
Weight as_matrix(const StoredTensor& t, const void* data, Quant quant) {
    Weight w;
    w.data = data;
    w.in = int32_t(t.shape.back());
    w.out = 1;
    w.quant = quant;
    return w;
}

// What one thread needs and finds.
struct Worker {
    std::vector<float> source, result;  // one row
    QuantizeLoss loss;
    std::optional<Error> error;
};

class RowJob {
  public:
    RowJob(const PlannedTensor& tensor, Quant source, const float* importance, std::byte* out)
        : tensor_(tensor), source_(source), importance_(importance), out_(out) {
        const std::vector<int64_t>& shape = tensor.source->shape;
        in_ = shape.back();
        rows_of_matrix_ = shape[shape.size() - 2];
    }

    // Row `row` of the tensor, the `index`-th of the output.
    void convert(int64_t row, int64_t index, Worker& worker) const {
        const StoredTensor& t = *tensor_.source;
        const std::byte* from = t.data + row * row_bytes(source_, in_);
        std::byte* to = out_ + index * row_bytes(tensor_.target, in_);
        decode_row(as_matrix(t, from, source_), 0, 0, worker.source.data());
        for (int64_t i = 0; i < in_; i++)
            if (!std::isfinite(worker.source[size_t(i)])) return fail("is not finite", row, i, worker);
        const float* importance = importance_ ? importance_ + row / rows_of_matrix_ * in_ : nullptr;
        encode_row(tensor_.target, worker.source.data(), in_, importance, to);
        decode_row(as_matrix(t, to, tensor_.target), 0, 0, worker.result.data());
        QuantizeLoss loss;
        for (int64_t i = 0; i < in_; i++) {
            const double x = double(worker.source[size_t(i)]), error = double(worker.result[size_t(i)]) - x;
            if (!std::isfinite(error)) return fail("is too large for the type", row, i, worker);
            loss.error += error * error;
            loss.all += x * x;
        }
        worker.loss.error += loss.error;
        worker.loss.all += loss.all;
    }
    int64_t in() const { return in_; }

  private:
    void fail(const char* what, int64_t row, int64_t column, Worker& worker) const {
        worker.error =
            bad_input("tensor '{}': the value in row {}, column {} ({}) {} {}", tensor_.source->name, row,
                      column, worker.source[size_t(column)], what, quant_name(tensor_.target));
    }
    const PlannedTensor& tensor_;
    const Quant source_;
    const float* importance_;
    std::byte* out_;
    int64_t in_ = 0, rows_of_matrix_ = 1;
};

}  // namespace

int64_t row_count(const StoredTensor& t) { return t.shape.empty() ? 1 : element_count(t) / t.shape.back(); }

Result<void> quantize_rows(const PlannedTensor& tensor, int64_t first, int64_t count, const float* importance,
                           int threads, std::byte* out, QuantizeLoss* loss) {
    const std::optional<Quant> source = stored_quant(*tensor.source);
    CHECK(source && tensor.converts, "{} is not to be converted", tensor.source->name);
    const RowJob job(tensor, *source, importance, out);
    const int64_t parts = (count + kRowsAtOnce - 1) / kRowsAtOnce;
    const auto workers = size_t(std::clamp<int64_t>(threads, 1, parts));
    // The loss of each part is kept apart and summed in order: it must not depend on who did which.
    std::vector<QuantizeLoss> losses(static_cast<size_t>(parts));
    std::vector<std::optional<Error>> errors(workers);
    std::atomic<int64_t> next{0};
    const auto work = [&](size_t index) {
        Worker worker{std::vector<float>(size_t(job.in())), std::vector<float>(size_t(job.in())), {}, {}};
        for (int64_t part = next++; part < parts && !worker.error; part = next++) {
            worker.loss = {};
            const int64_t end = std::min(count, (part + 1) * kRowsAtOnce);
            for (int64_t i = part * kRowsAtOnce; i < end && !worker.error; i++)
                job.convert(first + i, i, worker);
            losses[size_t(part)] = worker.loss;
        }
        errors[index] = std::move(worker.error);
    };
    std::vector<std::thread> helpers;
    for (size_t i = 1; i < workers; i++) helpers.emplace_back(work, i);
    work(0);
    for (std::thread& helper : helpers) helper.join();
    for (const std::optional<Error>& error : errors)
        if (error) return *error;
    for (const QuantizeLoss& part : losses) {
        loss->error += part.error;
        loss->all += part.all;
    }
    return {};
}

}  // namespace sparkinfer
