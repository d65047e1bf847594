#include "cuda/placement.h"

#include <algorithm>
#include <cmath>

#include "core/check.h"
#include "quant/slab.h"

namespace sparkinfer::cuda {
namespace {

constexpr int64_t kHalfStage = 32ll << 20;  // bytes of one half of the pinned stage
constexpr int64_t kPoolBytes = 16ll << 20;  // small tensors share allocations of this size
constexpr int64_t kRawChunk = 256ll << 20;  // raw rows repacked at a time

int64_t stored_rows(const Weight& w) {
    return int64_t(w.experts - 1) * (w.expert_rows ? w.expert_rows : w.out) + w.out;
}

bool suits_slabs(const Weight& w, int rows) {
    Quant slab;
    return w.data && slab_of(w.quant, &slab) && w.in % kSlabColumns == 0 && w.out % rows == 0 &&
           w.scale_count == 0;
}
bool pairs(const Weight& gate, const Weight& up) {
    return suits_slabs(gate, 8) && suits_slabs(up, 8) && gate.quant == up.quant && gate.out == up.out &&
           gate.in == up.in && gate.experts == up.experts && gate.expert_rows == up.expert_rows;
}

}  // namespace

Placement::~Placement() {
    close();
    for (void* p : allocations_) cudaFree(p);
}

Result<void> Placement::open() {
    CUDA_TRY(cudaMallocHost(&stage_, 2 * kHalfStage));
    for (cudaEvent_t& e : half_free_) CUDA_TRY(cudaEventCreateWithFlags(&e, cudaEventDisableTiming));
    TRY(std::byte * facts, device_bytes(sizeof(Facts)));
    facts_ = reinterpret_cast<Facts*>(facts);
    return {};
}

void Placement::close() {
    if (!stage_) return;
    cudaStreamSynchronize(stream_);
    cudaFreeHost(stage_);
    stage_ = nullptr;
    for (cudaEvent_t& e : half_free_) {
        if (e) cudaEventDestroy(e);
        e = nullptr;
    }
    if (raw_) cudaFree(raw_);
    raw_ = nullptr;
    raw_bytes_ = 0;
}

Result<std::byte*> Placement::device_bytes(int64_t bytes) {
    void* p = nullptr;
    if (cudaMalloc(&p, size_t(std::max<int64_t>(bytes, 1))) != cudaSuccess) {
        size_t free = 0, total = 0;
        cudaGetLastError();
        cudaMemGetInfo(&free, &total);
        return out_of_resources("the GPU has {} MiB free of {} MiB, {} MiB more were asked for", free >> 20,
                                total >> 20, (bytes + (1 << 20) - 1) >> 20);
    }
    allocations_.push_back(p);
    held_ += bytes;
    return static_cast<std::byte*>(p);
}

Result<std::byte*> Placement::pooled(int64_t bytes) {
    const int64_t room = (bytes + 255) / 256 * 256;
    if (room > kPoolBytes / 4) return device_bytes(bytes);
    if (room > pool_left_) {
        TRY(pool_, device_bytes(kPoolBytes));
        pool_left_ = kPoolBytes;
    }
    std::byte* p = pool_;
    pool_ += room;
    pool_left_ -= room;
    return p;
}

// File -> one half of the stage while the other half is still being copied.
Result<void> Placement::read(const Rows& rows, std::byte* to, ByteSource& source) {
    if (!stage_) TRY_VOID(open());
    for (int64_t at = 0; at < rows.bytes; at += kHalfStage) {
        const int64_t n = std::min(kHalfStage, rows.bytes - at);
        half_ ^= 1;
        CUDA_TRY(cudaEventSynchronize(half_free_[half_]));
        std::byte* half = stage_ + half_ * kHalfStage;
        TRY_VOID(source.read(rows.view + at, {half, size_t(n)}));
        CUDA_TRY(cudaMemcpyAsync(to + at, half, size_t(n), cudaMemcpyHostToDevice, stream_));
        CUDA_TRY(cudaEventRecord(half_free_[half_], stream_));
    }
    return {};
}

Result<const void*> Placement::upload(const void* view, int64_t bytes, ByteSource& source) {
    const std::pair<uint64_t, const void*> key{source.id, view};
    if (auto it = placed_.find(key); it != placed_.end()) return it->second;
    TRY(std::byte * to, pooled(bytes));
    TRY_VOID(read({static_cast<const std::byte*>(view), bytes}, to, source));
    placed_[key] = to;
    return static_cast<const void*>(to);
}

Result<Weight> Placement::place_raw(Weight w, ByteSource& source) {
    const int64_t scales = weight_bytes(w) - int64_t(w.experts) * w.out * row_bytes(w);
    TRY(w.data, upload(w.data, stored_rows(w) * row_bytes(w), source));
    if (w.scales) {
        TRY(w.scales, upload(w.scales, scales, source));
    }
    if (w.scale) {
        TRY(const void* factor, upload(w.scale, int64_t(w.scale_count) * 4, source));
        w.scale = static_cast<const float*>(factor);
    }
    return w;
}

Result<void> Placement::raw_scratch(int64_t bytes) {
    if (bytes <= raw_bytes_) return {};
    if (raw_) {
        CUDA_TRY(cudaStreamSynchronize(stream_));
        CUDA_TRY(cudaFree(raw_));
    }
    raw_ = nullptr;
    raw_bytes_ = 0;
    CUDA_TRY(cudaMalloc(&raw_, size_t(bytes)));
    raw_bytes_ = bytes;
    return {};
}

// One weight, or a gate and its up, to slabs. False: a scale would lose bits, nothing was placed.
Result<bool> Placement::place_slabs(Weight* w, Weight* up, ByteSource& source) {
    if (auto it = slabs_.find({source.id, w->data}); it != slabs_.end()) {
        const Weight known = it->second;
        *w = known;
        if (up) *up = known, up->pairing = Pairing::up;
        return true;
    }
    if (!stage_) TRY_VOID(open());
    Quant slab = Quant::f32;
    CHECK(slab_of(w->quant, &slab), "no slab form");
    const int64_t row = row_bytes(*w), of_each = up ? 8 : 16, rows = int64_t(w->experts) * w->out;
    // Rows of a chunk are contiguous in the files: one expert at a time where experts are fused with
    // something else.
    const int64_t whole = w->expert_rows ? w->out : rows;
    const int64_t chunk =
        std::min(whole, std::max<int64_t>(of_each, kRawChunk / row / (up ? 2 : 1) / of_each * of_each));
    TRY_VOID(raw_scratch(chunk * row * (up ? 2 : 1)));
    TRY(std::byte * to, device_bytes(rows / of_each * kSlabRows * row));
    CUDA_TRY(cudaMemsetAsync(facts_, 0, sizeof(Facts), stream_));
    const auto view = [&](const Weight& from, int64_t first) {
        const int64_t expert = first / w->out, stride = w->expert_rows ? w->expert_rows : w->out;
        return static_cast<const std::byte*>(from.data) + (expert * stride + first % w->out) * row;
    };
    const auto take = [&](int64_t first, int64_t n) -> Result<void> {
        TRY_VOID(read({view(*w, first), n * row}, raw_, source));
        if (up) TRY_VOID(read({view(*up, first), n * row}, raw_ + n * row, source));
        return {};
    };
    const auto rows_at = [&](int64_t first) { return std::min(chunk, whole - first % whole); };
    for (int64_t first = 0; first < rows; first += rows_at(first)) {
        const int64_t n = rows_at(first);
        TRY_VOID(take(first, n));
        scan_scales(raw_, n * (up ? 2 : 1), w->in, w->quant, &facts_->range, stream_);
    }
    Facts facts{};
    CUDA_TRY(cudaMemcpyAsync(&facts, facts_, sizeof facts, cudaMemcpyDeviceToHost, stream_));
    CUDA_TRY(cudaStreamSynchronize(stream_));
    Repack r{raw_, nullptr, to, 0, w->in, slab_powers(facts.range, w->quant), &facts_->lossy};
    for (int64_t first = 0; first < rows; first += rows_at(first)) {
        const int64_t n = rows_at(first);
        if (n != rows) TRY_VOID(take(first, n));  // a single chunk is still there
        r.second = up ? raw_ + n * row : nullptr;
        r.slabs = n / of_each;
        r.to = to + first / of_each * kSlabRows * row;
        repack(r, w->quant, stream_);
    }
    CUDA_TRY(cudaGetLastError());
    CUDA_TRY(cudaMemcpyAsync(&facts, facts_, sizeof facts, cudaMemcpyDeviceToHost, stream_));
    CUDA_TRY(cudaStreamSynchronize(stream_));
    if (facts.lossy) {
        CHECK(allocations_.back() == to, "the newest allocation");
        allocations_.pop_back();
        CUDA_TRY(cudaFree(to));
        ++kept_raw_;
        return false;
    }
    const float factor[2] = {std::ldexp(1.0f, -r.powers.d), std::ldexp(1.0f, r.powers.d - r.powers.m)};
    TRY(std::byte * device_factor, pooled(sizeof factor));
    CUDA_TRY(cudaMemcpyAsync(device_factor, factor, sizeof factor, cudaMemcpyHostToDevice, stream_));
    CUDA_TRY(cudaStreamSynchronize(stream_));
    const void* key = w->data;
    w->data = to;
    w->quant = slab;
    w->scale = reinterpret_cast<const float*>(device_factor);
    w->scale_count = 1;
    w->expert_rows = 0;
    w->pairing = up ? Pairing::gate : Pairing::none;
    slabs_[{source.id, key}] = *w;
    if (up) *up = *w, up->pairing = Pairing::up;
    return true;
}

std::vector<Form> planned_forms(const WeightGroup& group) {
    const std::vector<Weight>& w = group.weights;
    const bool paired_op = group.op == OpCode::linear_glu || group.op == OpCode::moe_glu;
    const bool multiplies = group.op == OpCode::norm_linear || group.op == OpCode::linear_add ||
                            group.op == OpCode::moe_down_add || group.op == OpCode::output;
    std::vector<Form> forms(w.size(), Form::raw);
    for (size_t i = 0; i < w.size(); ++i)
        if (multiplies && suits_slabs(w[i], 16)) forms[i] = Form::slabs;
    // The last two weights of a paired op are its gate and up.
    if (paired_op && w.size() >= 2 && pairs(w[w.size() - 2], w.back()))
        forms[w.size() - 2] = Form::gate, forms.back() = Form::up;
    return forms;
}

std::vector<Weight> planned_weights(const WeightGroup& group) {
    std::vector<Weight> w = group.weights;
    const std::vector<Form> forms = planned_forms(group);
    for (size_t i = 0; i < w.size(); ++i) {
        if (forms[i] == Form::raw) continue;
        CHECK(slab_of(w[i].quant, &w[i].quant), "no slab form");
        w[i].scale_count = 1;
        w[i].expert_rows = 0;
        if (forms[i] != Form::slabs) w[i].pairing = forms[i] == Form::gate ? Pairing::gate : Pairing::up;
    }
    return w;
}

Result<std::vector<Weight>> Placement::place(const WeightGroup& group, ByteSource& source) {
    std::vector<Weight> w = group.weights;
    const std::vector<Form> forms = planned_forms(group);
    for (size_t i = 0; i < w.size(); ++i) {
        if (!w[i].data) continue;
        if (forms[i] == Form::gate || forms[i] == Form::slabs) {
            const bool pair = forms[i] == Form::gate;
            TRY(const bool placed, place_slabs(&w[i], pair ? &w[i + 1] : nullptr, source));
            i += placed && pair;  // the up lies in the gate's slabs
            if (placed) continue;
        }
        TRY(w[i], place_raw(w[i], source));
    }
    return w;
}

}  // namespace sparkinfer::cuda
