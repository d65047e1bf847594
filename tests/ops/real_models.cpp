#include "real_models.h"

#include <sys/mman.h>

#include <algorithm>

#include "core/check.h"

namespace sparkinfer::test {
namespace {

constexpr int kStateWidth = 128, kTaps = 4;

// GGUF's names over one reserved mapping: pages that nobody reads cost nothing, those that are read are zero.
class StatedCheckpoint final : public Checkpoint {
  public:
    explicit StatedCheckpoint(const ModelFacts& f) : Checkpoint(Metadata(f.name)) {
        state_metadata(f);
        add("token_embd.weight", {f.vocabulary, f.dim}, f.table);
        add("output_norm.weight", {f.dim});
        if (!f.tied) add("output.weight", {f.vocabulary, f.dim}, f.head);
        for (int i = 0; i < f.layers; ++i) {
            prefix_ = fmt::format("blk.{}.", i);
            add("attn_norm.weight", {f.dim});
            if (f.recurrent(i))
                add_recurrent(f, i);
            else
                add_attention(f, i);
            add(f.value_heads ? "post_attention_norm.weight" : "ffn_norm.weight", {f.dim});
            add_ffn(f, i);
        }
        map();
    }
    ~StatedCheckpoint() override { munmap(region_, region_bytes_); }

    Container container() const override { return Container::gguf; }
    bool has_weight(const std::string& module) const override { return stored(module) != nullptr; }
    Result<Weight> weight(const std::string& module) override {
        const StoredTensor* t = stored(module);
        if (!t) return missing_weight(module, {});
        Weight w;
#define X(name, text, id) \
    if (t->type == (text)) w.quant = Quant::name;
        FOREACH_QUANT(X)
#undef X
        TRY_VOID(set_matrix_shape(*t, 1, &w));
        w.data = t->data;
        mark_used(t->name);
        return w;
    }

  private:
    const StoredTensor* stored(const std::string& module) const {
        const StoredTensor* t = find(module + ".weight");
        return t ? t : find(module);
    }

    void state_metadata(const ModelFacts& f) {
        const std::string prefix = std::string(f.architecture) + ".";
        const auto number = [&](const char* key, int value) {
            if (value) metadata_.insert(prefix + key, int64_t(value));
        };
        metadata_.insert("general.architecture", std::string(f.architecture));
        metadata_.insert(prefix + "attention.layer_norm_rms_epsilon", f.eps);
        metadata_.insert(prefix + "rope.freq_base", f.theta);
        number("block_count", f.layers);
        number("context_length", 8192);
        number("embedding_length", f.dim);
        number("attention.head_count", f.heads);
        number("attention.head_count_kv", f.kv_heads);
        number("attention.key_length", f.width);
        number("attention.value_length", f.width);
        number("rope.dimension_count", f.rotary);
        number(f.experts ? "expert_feed_forward_length" : "feed_forward_length", f.ffn);
        number("expert_count", f.experts);
        number("expert_used_count", f.used);
        number("expert_shared_feed_forward_length", f.shared);
        if (!f.value_heads) return;
        metadata_.insert(prefix + "rope.dimension_sections", std::vector<int64_t>{11, 11, 10, 0});
        number("full_attention_interval", 4);
        number("ssm.conv_kernel", kTaps);
        number("ssm.state_size", kStateWidth);
        number("ssm.group_count", f.key_heads);
        number("ssm.time_step_rank", f.value_heads);
        number("ssm.inner_size", f.value_heads * kStateWidth);
    }

    // Shapes outermost first; `data` is the offset until map().
    void add(const char* name, std::vector<int64_t> shape, Quant quant = Quant::f32) {
        StoredTensor t;
        t.name = prefix_ + name;
        t.type = quant_name(quant);
        t.shape = std::move(shape);
        t.bytes = uint64_t(row_bytes(quant, t.shape.back()) * (element_count(t) / t.shape.back()));
        t.file_offset = region_bytes_;
        region_bytes_ += (t.bytes + 31) / 32 * 32;
        tensors_.push_back(std::move(t));
    }

    // llama.cpp's Q4_K_M: more bits in the first and last eighth of the layers and in every third between.
    static Quant mixed(const ModelFacts& f, int layer, Quant otherwise) {
        const int n = f.layers, i = layer;
        return f.k_mix && (i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2) ? Quant::q6_k : otherwise;
    }

    void add_attention(const ModelFacts& f, int layer) {
        const int q = f.heads * f.width, kv = f.kv_heads * f.width;
        add("attn_q.weight", {f.value_heads ? 2 * q : q, f.dim},
            f.plain);  // hybrids: a gate beside each head
        add("attn_k.weight", {kv, f.dim}, f.plain);
        add("attn_v.weight", {kv, f.dim}, mixed(f, layer, f.plain));
        add("attn_output.weight", {f.dim, q}, f.plain);
        if (std::string(f.architecture) == "llama") return;
        add("attn_q_norm.weight", {f.width});
        add("attn_k_norm.weight", {f.width});
    }

    void add_recurrent(const ModelFacts& f, int layer) {
        const int values = f.value_heads * kStateWidth;
        add("attn_qkv.weight", {f.channels(), f.dim}, mixed(f, layer, f.plain));
        add("attn_gate.weight", {values, f.dim}, f.plain);
        add("ssm_beta.weight", {f.value_heads, f.dim}, Quant::q8_0);
        add("ssm_alpha.weight", {f.value_heads, f.dim}, Quant::q8_0);
        add("ssm_conv1d.weight", {f.channels(), kTaps});
        add("ssm_a", {f.value_heads});
        add("ssm_dt.bias", {f.value_heads});
        add("ssm_norm.weight", {kStateWidth});
        add("ssm_out.weight", {f.dim, values}, f.plain);
    }

    void add_ffn(const ModelFacts& f, int layer) {
        const Quant down = mixed(f, layer, f.down);
        if (!f.experts) {
            add("ffn_gate.weight", {f.ffn, f.dim}, f.plain);
            add("ffn_up.weight", {f.ffn, f.dim}, f.plain);
            return add("ffn_down.weight", {f.dim, f.ffn}, down);
        }
        add("ffn_gate_inp.weight", {f.experts, f.dim});
        add("ffn_gate_exps.weight", {f.experts, f.ffn, f.dim}, Quant::q4_k);
        add("ffn_up_exps.weight", {f.experts, f.ffn, f.dim}, Quant::q4_k);
        add("ffn_down_exps.weight", {f.experts, f.dim, f.ffn}, down);
        if (!f.shared) return;
        add("ffn_gate_inp_shexp.weight", {f.dim});
        add("ffn_gate_shexp.weight", {f.shared, f.dim}, f.plain);
        add("ffn_up_shexp.weight", {f.shared, f.dim}, f.plain);
        add("ffn_down_shexp.weight", {f.dim, f.shared}, f.plain);
    }

    void map() {
        region_ = mmap(nullptr, region_bytes_, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        CHECK(region_ != MAP_FAILED, "no {} bytes of addresses", region_bytes_);
        for (StoredTensor& t : tensors_) t.data = static_cast<const std::byte*>(region_) + t.file_offset;
        std::sort(tensors_.begin(), tensors_.end(),
                  [](const StoredTensor& a, const StoredTensor& b) { return a.name < b.name; });
        files_.push_back({path(), region_bytes_});
        used_.assign(tensors_.size(), false);
    }

    std::string prefix_;
    void* region_ = nullptr;
    uint64_t region_bytes_ = 0;
};

Tape record(const Model& model, int rows) {
    Batch batch;
    batch.rows = rows;
    batch.kv = model.shape().kv;
    batch.state = model.shape().state;
    for (KvLayer& layer : batch.kv) layer.dtype = DType::bf16;
    batch.output = OutputKind::select;
    batch.outputs = rows;
    Tape tape({}, {}, nullptr);
    model.forward(tape, batch);
    return tape;
}

}  // namespace

const std::vector<ModelFacts>& real_models() {
    // clang-format off
    static const std::vector<ModelFacts> models = {
        {.name = "SmolLM2-135M Q4_1", .architecture = "llama",
         .layers = 30, .dim = 576, .vocabulary = 49152, .ffn = 1536, .heads = 9, .kv_heads = 3,
         .width = 64, .rotary = 64, .tied = true, .eps = 1e-5, .theta = 1e5, .k_mix = false,
         .plain = Quant::q4_1, .table = Quant::q8_0, .down = Quant::q4_1, .tensors = 272,
         .parameters = 134'515'008},
        {.name = "Qwen3-0.6B Q4_K_M", .architecture = "qwen3",
         .layers = 28, .dim = 1024, .vocabulary = 151936, .ffn = 3072, .heads = 16, .kv_heads = 8,
         .width = 128, .rotary = 128, .tied = true, .table = Quant::q6_k, .tensors = 310,
         .parameters = 596'049'920},
        {.name = "Qwen3-30B-A3B Q4_K_M", .architecture = "qwen3moe",
         .layers = 48, .dim = 2048, .vocabulary = 151936, .ffn = 768, .heads = 32, .kv_heads = 4,
         .width = 128, .rotary = 128, .experts = 128, .used = 8, .tensors = 579,
         .parameters = 30'532'122'624},
        {.name = "Qwen3.6-35B-A3B UD-Q4_K_M", .architecture = "qwen35moe",
         .layers = 40, .dim = 2048, .vocabulary = 248320, .ffn = 512, .heads = 16, .kv_heads = 2,
         .width = 256, .rotary = 64, .experts = 256, .used = 8, .shared = 512, .key_heads = 16,
         .value_heads = 32, .theta = 1e7, .k_mix = false, .plain = Quant::q8_0, .head = Quant::q8_0,
         .table = Quant::q8_0, .down = Quant::q5_k, .tensors = 733, .file_bytes = 22'134'528'992},
        {.name = "Qwen3.8-27B Q4_K_M", .architecture = "qwen35",
         .layers = 64, .dim = 5120, .vocabulary = 248320, .ffn = 17408, .heads = 24, .kv_heads = 4,
         .width = 256, .rotary = 64, .key_heads = 16, .value_heads = 48, .theta = 1e7, .tensors = 851},
    };
    // clang-format on
    return models;
}

std::unique_ptr<Checkpoint> stated_checkpoint(const ModelFacts& facts) {
    return std::make_unique<StatedCheckpoint>(facts);
}

const std::vector<Recorded>& recorded_models() {
    static const std::vector<Recorded> all = [] {
        std::vector<Recorded> list;
        for (const ModelFacts& facts : real_models()) {
            Recorded r{&facts, stated_checkpoint(facts), nullptr, {}};
            Result<std::unique_ptr<Model>> model = load_model(*r.checkpoint);
            CHECK(model.ok(), "{}", model.error().message);
            r.model = std::move(model).value();
            for (int rows : kRecordedRows) r.tapes.push_back(record(*r.model, rows));
            list.push_back(std::move(r));
        }
        return list;
    }();
    return all;
}

}  // namespace sparkinfer::test
