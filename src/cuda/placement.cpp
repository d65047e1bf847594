#include "cuda/placement.h"

#include <algorithm>

#include "core/check.h"
#include "quant/slab.h"

namespace sparkinfer::cuda {
namespace {

constexpr int64_t kPoolBytes = 16ll << 20;      // small pieces share allocations of this size
constexpr int64_t kForeignBytes = 256ll << 20;  // less missing than this may be our own context's growth

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

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

// Gives every weight its place in one piece of memory, first with no memory to learn the size. `known` are
// the weights placed before; it learns the new ones.
struct Placement::Layout {
    uint64_t source = 0;
    std::byte* base = nullptr;
    float* factors = nullptr;
    Known known = {};
    int64_t bytes = 0, slabs = 0;
    std::vector<UploadJob> jobs = {};
    std::vector<std::vector<Weight>> placed = {};

    void add(const WeightGroup& group) {
        std::vector<Weight> w = planned_weights(group);
        const std::vector<Form> forms = planned_forms(group);
        for (size_t i = 0; i < w.size(); ++i) {
            if (!w[i].data) continue;
            if (forms[i] == Form::raw) {
                add_plain(w[i]);
            } else if (forms[i] != Form::up) {  // an up comes with the gate before it
                const bool pair = forms[i] == Form::gate;
                add_slabs(w[i], pair ? &w[i + 1] : nullptr, group.weights[i],
                          pair ? group.weights[i + 1] : Weight{});
            }
        }
        placed.push_back(std::move(w));
    }

  private:
    std::byte* take(int64_t n) {
        std::byte* at = base + bytes;
        bytes += aligned(n);
        return at;
    }
    const std::byte* plain(const void* view, int64_t n) {
        const auto [at, fresh] = known.plain.try_emplace({source, view}, nullptr);
        if (!fresh) return at->second;
        UploadJob job;
        job.view = static_cast<const std::byte*>(view);
        job.bytes = n;
        job.to = take(n);
        at->second = job.to;
        if (n > 0) jobs.push_back(job);
        return at->second;
    }
    void add_plain(Weight& w) {
        const int64_t factors_bytes = int64_t(w.scale_count) * 4;
        const int64_t rows = int64_t(w.experts) * w.out;
        int64_t scales = weight_bytes(w) - factors_bytes - rows * row_bytes(w);
        // Scales of rows lie as the rows do, between those of what they are fused with.
        if (w.quant != Quant::fp8_block) scales = scales / rows * stored_rows(w);
        w.data = plain(w.data, stored_rows(w) * row_bytes(w));
        if (w.scales) w.scales = plain(w.scales, scales);
        if (w.scale) w.scale = reinterpret_cast<const float*>(plain(w.scale, factors_bytes));
    }
    void add_slabs(Weight& w, Weight* up, const Weight& file, const Weight& file_up) {
        const auto [at, fresh] = known.slabs.try_emplace({source, file.data});
        if (fresh) {
            UploadJob job;
            job.first = file;
            job.second = file_up;
            job.bytes = job.rows() * row_bytes(file) * job.parts();
            job.to = take(job.bytes + job.rows() * job.parts());  // slabs and their rows' powers
            job.factor = factors + 2 * slabs++;
            jobs.push_back(job);
            w.data = job.to;
            w.scale = job.factor;
            if (up) up->data = w.data, up->scale = w.scale;
            at->second = {w, up ? *up : Weight{}};
        }
        w = at->second.first;
        if (up) *up = at->second.second;
    }
};

Placement::~Placement() {
    for (void* p : allocations_) cudaFree(p);
}

Result<std::byte*> Placement::device_bytes(int64_t bytes) {
    Result<std::byte*> taken = device_memory(bytes);
    if (!taken.ok()) {
        size_t free = 0, total = 0;
        if (free_expected_ < 0 || cudaMemGetInfo(&free, &total) != cudaSuccess) return taken;
        const int64_t missing = free_expected_ - held_ - int64_t(free);
        if (missing < kForeignBytes) return taken;
        return out_of_resources(
            "{}; {} MiB that were free when the model's memory was planned have been taken "
            "by another process meanwhile",
            taken.error().message, missing >> 20);
    }
    allocations_.push_back(*taken);
    held_ += bytes;
    return taken;
}

Result<std::byte*> Placement::pooled(int64_t bytes) {
    const int64_t room = aligned(bytes);
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

int64_t Placement::bytes_for(std::span<const WeightGroup> groups) {
    Layout layout;
    for (const WeightGroup& group : groups) layout.add(group);
    return layout.bytes + aligned(layout.slabs * 2 * int64_t(sizeof(float)));
}

Result<std::vector<std::vector<Weight>>> Placement::place(std::span<const WeightGroup> groups,
                                                          ByteSource& source, const PlaceProgress& progress) {
    Layout sizes{.source = source.id, .known = known_};
    for (const WeightGroup& group : groups) sizes.add(group);
    const int64_t factors = aligned(sizes.slabs * 2 * int64_t(sizeof(float)));
    Layout layout{.source = source.id, .known = known_};
    if (!sizes.jobs.empty()) {
        TRY(std::byte * memory, pooled(factors + sizes.bytes));
        layout.factors = reinterpret_cast<float*>(memory);
        layout.base = memory + factors;
    }
    for (const WeightGroup& group : groups) layout.add(group);
    TRY_VOID(Upload(stream_).run(layout.jobs, source, progress));
    TRY_VOID(keep_raw(layout, source));
    known_ = std::move(layout.known);
    return std::move(layout.placed);
}

// Weights that did not survive as slabs are read again, as the files have them, to where their slabs are.
Result<void> Placement::keep_raw(Layout& layout, ByteSource& source) {
    std::vector<UploadJob> again;
    for (const UploadJob& job : layout.jobs) {
        if (!job.lossy) continue;
        ++kept_raw_;
        const std::byte* at = job.to;
        for (const Weight* file : {&job.first, &job.second}) {
            if (!file->data) continue;
            Weight raw = *file;
            raw.data = at;
            raw.expert_rows = 0;
            const auto replace = [&](Weight& w) {
                const bool same = w.data == job.to && w.scale == job.factor &&
                                  (w.pairing == Pairing::up) == (file == &job.second);
                if (same) w = raw;
            };
            for (std::vector<Weight>& group : layout.placed)
                std::for_each(group.begin(), group.end(), replace);
            for (auto& [key, pair] : layout.known.slabs) replace(pair.first), replace(pair.second);
            // One expert at a time, since between them may lie rows of another weight.
            const int64_t bytes = int64_t(file->out) * row_bytes(*file);
            const int64_t stride = (file->expert_rows ? file->expert_rows : file->out) * row_bytes(*file);
            for (int32_t expert = 0; expert < file->experts; ++expert) {
                UploadJob part;
                part.view = static_cast<const std::byte*>(file->data) + expert * stride;
                part.bytes = bytes;
                part.to = const_cast<std::byte*>(at);
                again.push_back(part);
                at += bytes;
            }
        }
    }
    return again.empty() ? Result<void>() : Upload(stream_).run(again, source, {});
}

}  // namespace sparkinfer::cuda
