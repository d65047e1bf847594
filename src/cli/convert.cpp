// convert.cpp — `sparkinfer convert`: a Hugging Face checkpoint as a GGUF file that llama.cpp reads too.
// Values keep their type; what is stored quantised (FP8, NVFP4) becomes F32, which holds it exactly.
#include <unistd.h>

#include <algorithm>
#include <filesystem>

#include "cli/commands.h"
#include "cli/convert_metadata.h"
#include "cli/convert_tensors.h"
#include "cli/progress.h"
#include "core/log.h"
#include "load/checkpoint.h"
#include "load/gguf_writer.h"
#include "model/model.h"

namespace sparkinfer {

namespace {

constexpr size_t kBufferBytes = size_t(4) << 20;  // rows converted before they are written

uint32_t ggml_id(Quant q) { return q == Quant::f32 ? 0 : q == Quant::f16 ? 1 : 30; }

// general.file_type: what most bytes are.
uint32_t file_type(const ConversionPlan& plan) {
    uint64_t bytes[3] = {};  // F32, F16, BF16
    for (const ConvertedTensor& t : plan.tensors)
        bytes[t.type == Quant::f32 ? 0 : t.type == Quant::f16 ? 1 : 2] += t.bytes();
    const auto most = std::max_element(std::begin(bytes), std::end(bytes)) - std::begin(bytes);
    return most == 0 ? 0 : most == 1 ? 1 : 32;
}

// Divisors of the rotation's frequencies that `llama3` scaling asks for, as the tensor that carries them.
void add_rope_factors(const Config& c, ConversionPlan* plan) {
    if (c.rope.scaling != "llama3") return;
    RopeConfig plain = c.rope;
    plain.scaling.clear();
    const auto scaled = rope_table(c.rope, {}), base = rope_table(plain, {});
    if (!scaled.ok() || !base.ok()) return;
    std::vector<float> factors = base.value().frequency;
    for (size_t i = 0; i < factors.size(); ++i) factors[i] /= scaled.value().frequency[i];
    const auto n = int32_t(factors.size());
    plan->owned.push_back(std::make_unique<std::vector<float>>(std::move(factors)));
    Weight w;
    w.data = plan->owned.back()->data();
    w.out = 1;
    w.in = n;
    plan->tensors.push_back({"rope_freqs.weight", {n}, w, Quant::f32, {}, {}});
}

struct Conversion {
    std::unique_ptr<Checkpoint> checkpoint;
    ConversionPlan plan;
    GgufWriter writer;
};

// OUT may lie in the folder, as another GGUF file there may be replaced; whatever else is there is input.
Result<void> check_output(const ConvertOptions& o) {
    std::error_code trouble;
    for (const auto& entry : std::filesystem::directory_iterator(o.folder, trouble)) {
        const std::string path = entry.path().string();
        if (!path.ends_with(".gguf") && same_file(o.out, path))
            return usage_error("OUT {} is a file of the input ({}), which would be lost", o.out, path);
    }
    return {};
}

Result<Conversion> prepare(const ConvertOptions& o) {
    Conversion conversion;
    TRY(conversion.checkpoint, open_checkpoint(o.folder));
    Checkpoint& checkpoint = *conversion.checkpoint;
    if (checkpoint.container() != Container::safetensors)
        return bad_input("{}: is a GGUF file already, expected a folder with config.json and safetensors",
                         o.folder);
    TRY_VOID(check_output(o));
    TRY(const std::unique_ptr<Model> model, load_model(checkpoint));  // names and shapes of everything
    TRY(const Config config, read_config(checkpoint, model->shape().architecture));
    TRY(conversion.plan, plan_conversion(checkpoint, config));
    add_rope_factors(config, &conversion.plan);
    const std::filesystem::path folder = std::filesystem::path(o.folder).lexically_normal();
    const std::string name = (folder.has_filename() ? folder : folder.parent_path()).filename().string();
    TRY(const GgufPairs facts,
        convert_hyperparameters(checkpoint.metadata(), config, conversion.plan.mtp_layers, name));
    TRY(const GgufPairs tokenizer, convert_tokenizer(checkpoint.metadata(), config.vocab));
    for (const GgufPairs* pairs : {&facts, &tokenizer})
        for (const auto& [key, value] : *pairs) conversion.writer.set(key, value);
    conversion.writer.set("general.file_type", gguf_u32(file_type(conversion.plan)));
    for (const ConvertedTensor& t : conversion.plan.tensors)
        conversion.writer.add({t.name, t.shape, ggml_id(t.type), t.bytes()});
    return conversion;
}

// Writes one tensor's rows. False: interrupted.
Result<bool> write_tensor(const ConvertedTensor& t, NewFile& file, ProgressBar& bar, int64_t total) {
    const auto row_size = size_t(row_bytes(t.type, t.source.in));
    std::vector<std::byte> buffer;
    std::vector<float> scratch;
    for (int expert = 0; expert < t.source.experts; ++expert)
        for (int row = 0; row < t.source.out; ++row) {
            buffer.resize(buffer.size() + row_size);
            convert_row(t, expert, row, &scratch, buffer.data() + buffer.size() - row_size);
            const bool last = expert + 1 == t.source.experts && row + 1 == t.source.out;
            if (buffer.size() < kBufferBytes && !last) continue;
            if (interrupted()) return false;
            TRY_VOID(file.write(buffer));
            buffer.clear();
            bar.show(int64_t(file.written()), total);
        }
    return true;
}

}  // namespace

Result<int> run_command(const ConvertOptions& o, Session& session) {
    TRY(Conversion conversion, prepare(o));
    const Deferred deferred;  // an interrupted run takes its unfinished file away
    TRY(NewFile file, NewFile::create(o.out));
    TRY_VOID(conversion.writer.begin(file));
    ProgressBar bar(STDERR_FILENO, 0.3, "converting");
    const auto total = int64_t(conversion.writer.file_bytes());
    for (const ConvertedTensor& t : conversion.plan.tensors) {
        TRY(const bool whole, write_tensor(t, file, bar, total));
        if (!whole) return kExitInterrupted;
        TRY_VOID(conversion.writer.end_tensor(file));
    }
    TRY_VOID(file.commit());
    bar.erase();
    if (conversion.plan.decoded > 0)
        log_info(
            "{} quantised matrices became F32, which holds them exactly; `sparkinfer quantize` makes them "
            "small",
            conversion.plan.decoded);
    log_info("{}: {} tensors, {:.2f} MB, {:.1f} s", o.out, conversion.plan.tensors.size(),
             double(total) * 1e-6, seconds_between(session.started, Clock::now()));
    return 0;
}

}  // namespace sparkinfer
