#include "load/quantize_plan.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>
#include <utility>

#include "core/check.h"

namespace sparkinfer {

namespace {

constexpr FileType kFileTypes[] = {
    {"F32", Quant::f32, 0},      {"F16", Quant::f16, 1},      {"BF16", Quant::bf16, 32},
    {"Q8_0", Quant::q8_0, 7},    {"Q4_0", Quant::q4_0, 2},    {"Q4_1", Quant::q4_1, 3},
    {"Q5_0", Quant::q5_0, 8},    {"Q5_1", Quant::q5_1, 9},    {"Q4_K_S", Quant::q4_k, 14},
    {"Q4_K_M", Quant::q4_k, 15}, {"Q5_K_S", Quant::q5_k, 16}, {"Q5_K_M", Quant::q5_k, 17},
    {"Q6_K", Quant::q6_k, 18},
};

bool is_float(Quant q) { return q == Quant::f32 || q == Quant::f16 || q == Quant::bf16; }

bool has(std::string_view name, std::string_view part) { return name.find(part) != std::string_view::npos; }

// The layer of "blk.7.attn_q.weight"; -1 for a tensor of no layer.
int layer_of(std::string_view name) {
    int layer = -1;
    if (name.starts_with("blk.")) std::from_chars(name.data() + 4, name.data() + name.size(), layer);
    return layer;
}

// Whether a tensor is a matrix that is quantised at all: not norms, routers, convolutions or indexers, which
// are small and sensitive.
bool is_quantized(const StoredTensor& t) {
    const auto dimensions = std::find_if(t.shape.begin(), t.shape.end(), [](int64_t n) { return n > 1; });
    if (t.shape.end() - dimensions < 2 || !t.name.ends_with("weight")) return false;
    for (const char* part : {"_norm.weight", "ffn_gate_inp.weight", "ssm_conv1d", "shortconv.conv.weight",
                             "indexer.k_proj.weight", "indexer.q_proj.weight"})
        if (has(t.name, part)) return false;
    return true;
}

bool is_value_like(std::string_view name) {
    return has(name, "attn_v.weight") || has(name, "attn_qkv.weight") || has(name, "attn_kv_b.weight");
}

// Chooses types tensor by tensor, in their order: some choices count.
class Chooser {
  public:
    Chooser(const Checkpoint& model, const FileType& type, bool has_imatrix)
        : type_(type), name_(type.name), has_imatrix_(has_imatrix) {
        const Metadata& m = model.metadata();
        const auto arch = m.string_or("general.architecture", "");
        arch_ = arch.ok() ? arch.value() : "";
        layers_ = number(m, arch_ + ".block_count");
        experts_ = number(m, arch_ + ".expert_count");
        const int64_t heads = number(m, arch_ + ".attention.head_count");
        grouped_80_ =
            arch_ == "llama" && layers_ == 80 && heads != number(m, arch_ + ".attention.head_count_kv");
        for (const StoredTensor& t : model.tensors()) values_ += is_value_like(t.name);
        tied_ = model.find("output.weight") == nullptr;
    }

    Quant choose(const StoredTensor& t) {
        if (is_float(type_.base)) return type_.base;
        if (t.name == "output.weight" || (tied_ && t.name == "token_embd.weight")) {
            if (t.shape.back() % quant_block(type_.base) != 0) return Quant::q8_0;
            return type_.base == Quant::q8_0 ? Quant::q8_0 : Quant::q6_k;
        }
        if (is_value_like(t.name)) return of_values();
        if (has(t.name, "attn_k.weight") && experts_ == 8) return Quant::q8_0;
        if (has(t.name, "attn_output.weight") && experts_ == 8 && type_.base == Quant::q4_k)
            return Quant::q5_k;
        if (has(t.name, "ffn_down")) return of_down(t);
        return type_.base;
    }

  private:
    static int64_t number(const Metadata& m, const std::string& key) {
        const auto found = m.int_or(key, 0, 0, INT32_MAX);
        return found.ok() ? found.value() : 0;
    }
    bool medium() const { return name_ == "Q4_K_M" || name_ == "Q5_K_M"; }
    // The first and the last eighth of the layers and every third between them get more bits.
    static bool more_bits(int64_t i, int64_t n) {
        return i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2;
    }
    Quant of_values() {
        const int64_t i = value_++;
        Quant q = type_.base;
        if (medium() && more_bits(i, values_)) q = Quant::q6_k;
        if (name_ == "Q4_K_S" && i < 4) q = Quant::q5_k;
        if (grouped_80_ && q == Quant::q4_k) q = Quant::q5_k;
        return experts_ == 8 ? Quant::q8_0 : q;
    }
    Quant of_down(const StoredTensor& t) {
        int64_t i = down_++;
        if (experts_ > 1) i = layer_of(t.name);
        if (medium() && more_bits(i, layers_)) return Quant::q6_k;
        if (name_ == "Q4_K_S" && i < layers_ / 8) return Quant::q5_k;
        if (has_imatrix_ && i < layers_ / 8 && type_.base == Quant::q4_0) return Quant::q4_1;
        if (has_imatrix_ && i < layers_ / 8 && type_.base == Quant::q5_0) return Quant::q5_1;
        return type_.base;
    }

    const FileType& type_;
    const std::string_view name_;
    const bool has_imatrix_;
    std::string arch_;
    int64_t layers_ = 0, experts_ = 0;
    bool tied_ = false, grouped_80_ = false;
    int64_t values_ = 0, value_ = 0, down_ = 0;  // value-like matrices in all, seen; ffn_down seen
};

// What rows take that do not divide into blocks of `wanted`.
Quant fitting(Quant wanted, int64_t in) {
    if (in % quant_block(wanted) == 0) return wanted;
    Quant q = wanted;
    if (wanted == Quant::q4_k) q = Quant::q5_0;
    if (wanted == Quant::q5_k) q = Quant::q5_1;
    if (wanted == Quant::q6_k) q = Quant::q8_0;
    return in % quant_block(q) == 0 ? q : Quant::f16;
}

}  // namespace

std::optional<Quant> stored_quant(const StoredTensor& t) {
#define X(name, text, id) \
    if ((id) >= 0 && t.type == (text)) return Quant::name;
    FOREACH_QUANT(X)
#undef X
    return std::nullopt;
}

const FileType* find_file_type(std::string_view name) {
    std::string upper(name);
    for (char& c : upper)
        if (c >= 'a' && c <= 'z') c = char(c - 'a' + 'A');
    if (upper == "Q4_K" || upper == "Q5_K") upper += "_M";
    for (const FileType& type : kFileTypes)
        if (upper == type.name) return &type;
    return nullptr;
}

const FileType* find_file_type(int64_t id) {
    for (const FileType& type : kFileTypes)
        if (id == type.id) return &type;
    return nullptr;
}

std::string file_type_names() {
    std::string names;
    for (const FileType& type : kFileTypes) names += (names.empty() ? "" : ", ") + std::string(type.name);
    return names;
}

Result<std::vector<PlannedTensor>> plan_quantization(const Checkpoint& model, const FileType& type,
                                                     bool has_imatrix, bool requantize) {
    std::vector<PlannedTensor> plan;
    for (const StoredTensor& t : model.tensors()) plan.push_back({.source = &t, .bytes = t.bytes});
    const auto place = [](const PlannedTensor& p) {
        return std::pair<int, std::string_view>(layer_of(p.source->name), p.source->name);
    };
    std::sort(plan.begin(), plan.end(),
              [&](const PlannedTensor& a, const PlannedTensor& b) { return place(a) < place(b); });
    Chooser chooser(model, type, has_imatrix);
    for (PlannedTensor& p : plan) {
        const StoredTensor& t = *p.source;
        if (!is_quantized(t)) continue;
        const Quant wanted = chooser.choose(t);
        p.target = fitting(wanted, t.shape.back());
        p.fell_back = p.target != wanted;
        const std::optional<Quant> source = stored_quant(t);
        p.converts = !source || *source != p.target;
        if (!p.converts) continue;
        if (t.shape.back() > INT32_MAX)
            return bad_input("{}: tensor '{}' has rows of {} values, expected at most {}", model.path(),
                             t.name, t.shape.back(), INT32_MAX);
        if (!source)
            return bad_input("{}: tensor '{}' has type {}, which has no decoder here", model.path(), t.name,
                             t.type);
        if (!is_float(*source) && !is_float(p.target) && !requantize)
            return bad_input(
                "{}: tensor '{}' is quantised already ({}), expected F32, F16 or BF16; --requantize "
                "quantises again what has lost once",
                model.path(), t.name, t.type);
        p.bytes = uint64_t(row_bytes(p.target, element_count(t)));
    }
    return plan;
}

}  // namespace sparkinfer
