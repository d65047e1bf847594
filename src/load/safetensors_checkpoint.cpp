// safetensors_checkpoint.cpp — a model folder as a Checkpoint: collects the tensors of its files and resolves
// the quantised layouts of docs/formats.md by tensor names.
#include <algorithm>
#include <filesystem>

#include "core/file.h"
#include "load/hf_folder.h"
#include "load/safetensors.h"

namespace sparkinfer {

namespace {

class SafetensorsCheckpoint final : public Checkpoint {
  public:
    explicit SafetensorsCheckpoint(Metadata metadata) : Checkpoint(std::move(metadata)) {}
    Container container() const override { return Container::safetensors; }
    bool has_weight(const std::string& module) const override {
        const std::string base = base_name(module);
        return find(base) || find(base + "_packed");
    }
    Result<Weight> weight(const std::string& module) override;

    Result<void> read(const std::string& folder, const TensorFiles& files);

  private:
    // What the tensors of `module` are called: "M.weight", or "M" itself for parameters without that suffix
    // (fused experts). Companions append to it: "_packed", "_scale", "_scale_2", "_scale_inv",
    // "_global_scale".
    std::string base_name(const std::string& module) const {
        std::string usual = module + ".weight";
        if (find(usual) || find(usual + "_packed")) return usual;
        return find(module) || find(module + "_packed") ? module : usual;
    }
    Result<void> add(MappedFile file, const std::string& name, const TensorFiles& files);
    Result<void> check_complete(const TensorFiles& files);
    Result<void> refuse_orphans() const;

    Result<const StoredTensor*> companion(const StoredTensor& t, const std::string& name,
                                          const char* type) const;
    Result<Weight> nvfp4(const StoredTensor& codes, const std::string& base, bool divisor);
    Result<Weight> fp8(const StoredTensor& codes, const std::string& base);
    Result<void> fp8_scale(const StoredTensor& codes, const StoredTensor& scale, bool inverse, Weight* w);
    Result<Weight> plain(const StoredTensor& t, const std::string& base);
    std::vector<MappedFile> maps_;
};

Result<void> SafetensorsCheckpoint::add(MappedFile file, const std::string& name, const TensorFiles& files) {
    TRY(std::vector<StoredTensor> tensors, parse_safetensors(file.bytes(), file.path()));
    for (StoredTensor& t : tensors) {
        if (files.indexed) {
            const auto holder = files.holder.find(t.name);
            if (holder == files.holder.end()) continue;  // the index is the authority
            if (holder->second != name)
                return bad_input("{}: tensor '{}' is in '{}', but the index says it is in '{}'", path(),
                                 t.name, name, holder->second);
        }
        t.file = int(files_.size());
        tensors_.push_back(std::move(t));
    }
    files_.push_back({file.path(), file.size()});
    maps_.push_back(std::move(file));
    return {};
}

// Every tensor of the index was found, and none twice.
Result<void> SafetensorsCheckpoint::check_complete(const TensorFiles& files) {
    std::sort(tensors_.begin(), tensors_.end(),
              [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
    for (size_t i = 1; i < tensors_.size(); i++)
        if (tensors_[i].name == tensors_[i - 1].name)
            return bad_input("{}: tensor '{}' occurs in {} and in {}", path(), tensors_[i].name,
                             files_[size_t(tensors_[i - 1].file)].path,
                             files_[size_t(tensors_[i].file)].path);
    for (const auto& [name, file] : files.holder)
        if (!find(name))
            return bad_input("{}: tensor '{}' is missing from '{}', where the index says it is", path(), name,
                             file);
    used_.assign(tensors_.size(), false);
    return {};
}

// Scales without codes, and packed codes without scales, mean a damaged or half-converted model.
Result<void> SafetensorsCheckpoint::refuse_orphans() const {
    for (const StoredTensor& t : tensors_) {
        for (const char* suffix : {"_scale_inv", "_scale_2", "_global_scale", "_scale"}) {
            const std::string ending = std::string(".weight") + suffix;
            if (!t.name.ends_with(ending)) continue;
            const std::string base = t.name.substr(0, t.name.size() - std::string(suffix).size());
            if (!find(base) && !find(base + "_packed"))
                return bad_input("{}: tensor '{}' is an orphan: there is no '{}' and no '{}_packed'", path(),
                                 t.name, base, base);
        }
    }
    return {};
}

Result<void> SafetensorsCheckpoint::read(const std::string& folder, const TensorFiles& files) {
    for (const std::string& name : files.names) {
        TRY(MappedFile file, MappedFile::open((std::filesystem::path(folder) / name).string()));
        TRY_VOID(add(std::move(file), name, files));
    }
    TRY_VOID(check_complete(files));
    return refuse_orphans();
}

// The tensor that must stand beside `t`, of the given dtype (null: any).
Result<const StoredTensor*> SafetensorsCheckpoint::companion(const StoredTensor& t, const std::string& name,
                                                             const char* type) const {
    const StoredTensor* found = find(name);
    if (!found)
        return bad_input("{}: tensor '{}' is missing, which '{}' ({}) needs", path(), name, t.name, t.type);
    if (type && found->type != type)
        return bad_input("{}: tensor '{}' has dtype {}, expected {}", path(), name, found->type, type);
    return found;
}

// NVFP4 in either spelling; `divisor` says that the tensor's factor divides (compressed-tensors).
Result<Weight> SafetensorsCheckpoint::nvfp4(const StoredTensor& codes, const std::string& base,
                                            bool divisor) {
    if (codes.type != "U8")
        return bad_input("{}: tensor '{}' has dtype {}, expected U8", path(), codes.name, codes.type);
    Weight w;
    w.quant = Quant::nvfp4_split;
    w.data = codes.data;
    TRY_VOID(set_matrix_shape(codes, 2, &w));
    if (w.in % 16 != 0)
        return bad_input("{}: tensor '{}' has rows of {} values, expected a multiple of 16", path(),
                         codes.name, w.in);
    TRY(const StoredTensor* scale, companion(codes, base + "_scale", "F8_E4M3"));
    std::vector<int64_t> expected = codes.shape;
    expected.back() = w.in / 16;
    if (scale->shape != expected)
        return bad_input("{}: tensor '{}' has shape {}, expected {}", path(), scale->name,
                         shape_text(scale->shape), shape_text(expected));
    w.scales = scale->data;
    const std::string factor_name = base + (divisor ? "_global_scale" : "_scale_2");
    TRY(const StoredTensor* factor, companion(codes, factor_name, "F32"));
    TRY(const float* factors, owned_floats(*factor, w.experts, &w.scale_count));
    for (int i = 0; i < w.scale_count; i++) {
        if (!(factors[i] > 0) || factors[i] > 3.4e38f)
            return bad_input("{}: tensor '{}' holds {}, expected a positive finite factor", path(),
                             factor_name, factors[i]);
        if (divisor) const_cast<float*>(factors)[i] = 1.0f / factors[i];  // our own copy
    }
    w.scale = factors;
    mark_used(codes.name);
    mark_used(scale->name);
    return w;
}

// Fills in the scales of E4M3 codes by the shape of the scale tensor.
Result<void> SafetensorsCheckpoint::fp8_scale(const StoredTensor& codes, const StoredTensor& scale,
                                              bool inverse, Weight* w) {
    const auto tiles = [](int64_t n) { return (n + 127) / 128; };
    const std::vector<int64_t>& shape = scale.shape;
    const int64_t count = element_count(scale);
    std::vector<int64_t> block = {tiles(w->out), tiles(w->in)}, column = {w->out, 1}, row = {w->out};
    if (codes.shape.size() == 3)
        for (std::vector<int64_t>* s : {&block, &column, &row}) s->insert(s->begin(), w->experts);
    if (!inverse && (count == 1 || (w->experts > 1 && count == w->experts && w->out > 1))) {
        w->quant = Quant::fp8_tensor;
        TRY(w->scale, owned_floats(scale, w->experts, &w->scale_count));
        return {};
    }
    if (!inverse && (shape == column || shape == row)) {
        w->quant = Quant::fp8_channel;
    } else if (shape == block) {
        w->quant = Quant::fp8_block;
    } else {
        return bad_input("{}: tensor '{}' has shape {}, expected {} for tiles of 128 by 128{}", path(),
                         scale.name, shape_text(shape), shape_text(block),
                         inverse ? "" : fmt::format(", {} for rows, or one element", shape_text(column)));
    }
    int32_t n = 0;
    TRY(w->scales, owned_floats(scale, int32_t(count), &n));
    return {};
}

Result<Weight> SafetensorsCheckpoint::fp8(const StoredTensor& codes, const std::string& base) {
    Weight w;
    w.data = codes.data;
    TRY_VOID(set_matrix_shape(codes, 1, &w));
    const StoredTensor* inverse = find(base + "_scale_inv");
    if (inverse && find(base + "_scale"))
        return bad_input("{}: '{}' has both '{}_scale' and '{}_scale_inv', expected one", path(), codes.name,
                         base, base);
    const StoredTensor* scale = inverse;
    if (!scale) {
        TRY(scale, companion(codes, base + "_scale", nullptr));
    }
    TRY_VOID(fp8_scale(codes, *scale, inverse != nullptr, &w));
    mark_used(codes.name);
    mark_used(scale->name);
    return w;
}

Result<Weight> SafetensorsCheckpoint::plain(const StoredTensor& t, const std::string& base) {
    Weight w;
    if (t.type == "F32")
        w.quant = Quant::f32;
    else if (t.type == "F16")
        w.quant = Quant::f16;
    else if (t.type == "BF16")
        w.quant = Quant::bf16;
    else
        return bad_input("{}: tensor '{}' has dtype {}, expected F32, F16, BF16, F8_E4M3 or U8 with scales",
                         path(), t.name, t.type);
    for (const char* suffix : {"_scale", "_scale_inv", "_scale_2", "_global_scale"})
        if (find(base + suffix))
            return bad_input("{}: tensor '{}{}' is an orphan: '{}' has dtype {}, which takes no scales",
                             path(), base, suffix, t.name, t.type);
    w.data = t.data;
    TRY_VOID(set_matrix_shape(t, 1, &w));
    mark_used(t.name);
    return w;
}

Result<Weight> SafetensorsCheckpoint::weight(const std::string& module) {
    const std::string base = base_name(module);
    const StoredTensor* packed = find(base + "_packed");
    const StoredTensor* t = find(base);
    if (packed && t)
        return bad_input("{}: has both '{}' and '{}', expected one", path(), packed->name, t->name);
    if (!packed && !t)
        return missing_weight(
            module, {".weight_scale", ".weight_scale_inv", ".weight_scale_2", ".weight_global_scale"});
    // Scales for quantised activations; weights alone are more exact, so they count as used.
    mark_used(module + ".input_scale");
    mark_used(module + ".input_global_scale");
    if (packed) return nvfp4(*packed, base, true);
    if (t->type == "U8") return nvfp4(*t, base, false);
    if (t->type == "F8_E4M3") return fp8(*t, base);
    return plain(*t, base);
}

}  // namespace

Result<std::unique_ptr<Checkpoint>> open_safetensors(const std::string& folder) {
    TRY(Metadata metadata, read_folder_metadata(folder));
    TRY(const TensorFiles files, find_tensor_files(folder));
    auto checkpoint = std::make_unique<SafetensorsCheckpoint>(std::move(metadata));
    TRY_VOID(checkpoint->read(folder, files));
    return std::unique_ptr<Checkpoint>(std::move(checkpoint));
}

}  // namespace sparkinfer
