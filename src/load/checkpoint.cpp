#include "load/checkpoint.h"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <new>

#include "core/half.h"
#include "load/gguf.h"
#include "load/safetensors.h"
#include "quant/formats.h"

namespace sparkinfer {

namespace {

// Bytes of one value of a plain float type; 0 for any other type.
int float_bytes(const std::string& type) {
    if (type == "F32") return 4;
    if (type == "F16" || type == "BF16") return 2;
    return type == "F64" ? 8 : 0;
}

// Values of a plain float type as float32.
void convert_floats(const StoredTensor& t, float* out) {
    const int64_t n = int64_t(t.bytes) / float_bytes(t.type);
    if (t.type == "F64") {
        for (int64_t i = 0; i < n; i++) {
            double value;
            std::memcpy(&value, t.data + i * 8, 8);
            out[i] = float(value);
        }
    } else if (t.type == "F32") {
        Format<Quant::f32>::decode_blocks(t.data, n, out);
    } else if (t.type == "F16") {
        Format<Quant::f16>::decode_blocks(t.data, n, out);
    } else {
        Format<Quant::bf16>::decode_blocks(t.data, n, out);
    }
}

}  // namespace

int64_t element_count(const StoredTensor& t) {
    int64_t n = 1;
    for (const int64_t extent : t.shape) n *= extent;
    return n;
}

std::string shape_text(const std::vector<int64_t>& shape) {
    std::string text = "[";
    for (size_t i = 0; i < shape.size(); i++) text += fmt::format("{}{}", i ? ", " : "", shape[i]);
    return text + "]";
}

const StoredTensor* Checkpoint::find(std::string_view name) const {
    const auto it = std::lower_bound(tensors_.begin(), tensors_.end(), name,
                                     [](const StoredTensor& t, std::string_view n) { return t.name < n; });
    return it != tensors_.end() && it->name == name ? &*it : nullptr;
}

void Checkpoint::mark_used(std::string_view name) {
    if (const StoredTensor* t = find(name)) used_[size_t(t - tensors_.data())] = true;
}

std::vector<std::string> Checkpoint::unused() const {
    std::vector<std::string> names;
    for (size_t i = 0; i < tensors_.size(); i++)
        if (!used_[i]) names.push_back(tensors_[i].name);
    return names;
}

Result<std::vector<float>> Checkpoint::floats(const std::string& name, int64_t count) {
    const StoredTensor* t = find(name);
    if (!t) return bad_input("{}: tensor '{}' is missing", path(), name);
    if (float_bytes(t->type) == 0)
        return bad_input("{}: tensor '{}' has type {}, expected F32, F16, BF16 or F64", path(), name,
                         t->type);
    if (element_count(*t) != count)
        return bad_input("{}: tensor '{}' has shape {}, expected {} elements", path(), name,
                         shape_text(t->shape), count);
    mark_used(name);
    std::vector<float> values(static_cast<size_t>(count));
    convert_floats(*t, values.data());
    return values;
}

Error Checkpoint::missing_weight(const std::string& module,
                                 const std::vector<std::string>& companions) const {
    for (const std::string& suffix : companions)
        if (find(module + suffix))
            return bad_input("{}: tensor '{}{}' is an orphan: the weight of '{}' is missing", path(), module,
                             suffix, module);
    return bad_input("{}: tensor '{}.weight' is missing", path(), module);
}

Result<void> Checkpoint::set_matrix_shape(const StoredTensor& t, int values_per_element, Weight* w) const {
    const size_t n = t.shape.size();
    if (n < 1 || n > 3)
        return bad_input("{}: tensor '{}' has shape {}, expected [in], [out, in] or [experts, out, in]",
                         path(), t.name, shape_text(t.shape));
    for (const int64_t extent : t.shape)
        if (extent > INT32_MAX / values_per_element)
            return bad_input("{}: tensor '{}' has shape {}, expected at most {} in each dimension", path(),
                             t.name, shape_text(t.shape), INT32_MAX / values_per_element);
    w->in = int32_t(t.shape[n - 1] * values_per_element);
    w->out = n >= 2 ? int32_t(t.shape[n - 2]) : 1;
    w->experts = n == 3 ? int32_t(t.shape[0]) : 1;
    return {};
}

Result<std::byte*> Checkpoint::own(uint64_t bytes) {
    std::unique_ptr<std::byte[]> memory(new (std::nothrow) std::byte[bytes]);
    if (!memory) return out_of_resources("{}: no memory for {} bytes of weights", path(), bytes);
    owned_.push_back(std::move(memory));
    return owned_.back().get();
}

Result<const float*> Checkpoint::owned_floats(const StoredTensor& t, int32_t experts, int32_t* count) {
    const int64_t n = element_count(t);
    if (float_bytes(t.type) == 0)
        return bad_input("{}: tensor '{}' has type {}, expected F32, F16, BF16 or F64", path(), t.name,
                         t.type);
    if (n != 1 && n != experts)
        return bad_input("{}: tensor '{}' has {} elements, expected {}{}", path(), t.name, n, experts,
                         experts == 1 ? "" : " or 1");
    TRY(std::byte* const memory, own(uint64_t(n) * sizeof(float)));
    auto* values = reinterpret_cast<float*>(memory);
    convert_floats(t, values);
    *count = int32_t(n);
    mark_used(t.name);
    return static_cast<const float*>(values);
}

// One pointer to parts that follow each other: the first part if they do so already, else a copy.
Result<const void*> Checkpoint::adjoin(const std::vector<const void*>& parts, uint64_t part_bytes) {
    bool adjacent = true;
    for (size_t i = 1; i < parts.size(); i++)
        adjacent &= static_cast<const std::byte*>(parts[i - 1]) + part_bytes == parts[i];
    if (adjacent) return parts[0];
    TRY(std::byte* const memory, own(part_bytes * parts.size()));
    for (size_t i = 0; i < parts.size(); i++) std::memcpy(memory + i * part_bytes, parts[i], part_bytes);
    return static_cast<const void*>(memory);
}

Result<Weight> Checkpoint::stacked(const std::vector<std::string>& modules) {
    CHECK(!modules.empty());
    std::vector<Weight> parts;
    std::vector<const void*> codes, scales;
    bool scaled = false;
    for (const std::string& module : modules) {
        TRY(const Weight w, weight(module));
        const Weight& first = parts.empty() ? w : parts[0];
        if (w.experts != 1 || w.out != first.out || w.in != first.in || w.quant != first.quant)
            return bad_input("{}: '{}' is a {} matrix of {} by {}, expected {} by {} in {} as '{}'", path(),
                             module, quant_name(w.quant), w.out, w.in, first.out, first.in,
                             quant_name(first.quant), modules[0]);
        parts.push_back(w);
        codes.push_back(w.data);
        scales.push_back(w.scales);
        scaled |= w.scale_count > 0;
    }
    Weight all = parts[0];
    all.experts = int32_t(parts.size());
    TRY(all.data, adjoin(codes, uint64_t(row_bytes(all)) * uint64_t(all.out)));
    const int64_t scale_bytes = with_format(all.quant, [&](auto f) -> int64_t {
        if constexpr (f.split) return f.scale_bytes(1, all.out, all.in);
        return 0;
    });
    if (scale_bytes > 0) {
        TRY(all.scales, adjoin(scales, uint64_t(scale_bytes)));
    }
    if (!scaled) return all;
    TRY(std::byte* const memory, own(parts.size() * sizeof(float)));
    auto* factors = reinterpret_cast<float*>(memory);
    for (size_t i = 0; i < parts.size(); i++) factors[i] = parts[i].scale_count ? parts[i].scale[0] : 1.0f;
    all.scale = factors;
    all.scale_count = all.experts;
    return all;
}

Result<std::unique_ptr<Checkpoint>> open_checkpoint(const std::string& path) {
    try {
        std::error_code trouble;
        if (std::filesystem::is_directory(path, trouble)) return open_safetensors(path);
        if (path.ends_with(".safetensors"))
            return bad_input("{}: is one safetensors file; give the folder that holds it and config.json",
                             path);
        return open_gguf(path);
    } catch (const std::bad_alloc&) {
        return out_of_resources("{}: no memory for the model's metadata", path);
    }
}

}  // namespace sparkinfer
