// quantize.cpp — `sparkinfer quantize`: a GGUF file with smaller weights, tensor by tensor as llama.cpp's
// quantiser chooses them. The result is one file, written under a temporary name and renamed when it is
// whole.
#include <unistd.h>

#include <algorithm>
#include <cmath>

#include "cli/commands.h"
#include "cli/machine.h"
#include "cli/progress.h"
#include "core/file.h"
#include "core/log.h"
#include "load/gguf.h"
#include "load/gguf_writer.h"
#include "load/imatrix.h"
#include "load/quantize_plan.h"
#include "load/quantize_rows.h"

namespace sparkinfer {

namespace {

constexpr int64_t kSlabBytes = int64_t(32) << 20;  // converted before they are written

uint32_t type_id_of(const PlannedTensor& p, const std::vector<std::pair<std::string, uint32_t>>& ids) {
    const std::string name = p.converts ? quant_name(p.target) : p.source->type;
    const auto found = std::find_if(ids.begin(), ids.end(), [&](const auto& id) { return id.first == name; });
    return found->second;
}

// Every type id that ggml has a name for.
std::vector<std::pair<std::string, uint32_t>> type_ids() {
    std::vector<std::pair<std::string, uint32_t>> ids;
    int block = 0, bytes = 0;
    for (uint32_t id = 0; id < 256; ++id)
        if (ggml_type_geometry(id, &block, &bytes)) ids.emplace_back(ggml_type_name(id), id);
    return ids;
}

struct Job {
    const QuantizeOptions& options;
    const FileType& type;
    std::unique_ptr<Checkpoint> model;
    std::optional<Imatrix> imatrix;
    std::vector<PlannedTensor> plan;
    int64_t source_bytes = 0, bytes = 0, weights = 0;  // of all tensors
};

Result<Job> prepare(const QuantizeOptions& o) {
    const FileType* type = find_file_type(o.type);
    if (!type) return usage_error("TYPE is '{}', expected one of {}", o.type, file_type_names());
    TRY(std::unique_ptr<Checkpoint> model, open_checkpoint(o.in));
    if (model->container() != Container::gguf)
        return bad_input(
            "{}: is a folder of safetensors, expected a GGUF file; `sparkinfer convert` makes one", o.in);
    for (const CheckpointFile& file : model->files())
        if (same_file(o.out, file.path))
            return usage_error("OUT {} is a file of the input ({}), which would be lost", o.out, file.path);
    Job job{o, *type, std::move(model), {}, {}};
    if (o.imatrix) {
        if (same_file(o.out, *o.imatrix)) return usage_error("OUT {} is the importance matrix", o.out);
        TRY(job.imatrix, read_imatrix(*o.imatrix));
    }
    TRY(job.plan, plan_quantization(*job.model, *type, job.imatrix.has_value(), o.requantize));
    for (const PlannedTensor& p : job.plan) {
        job.source_bytes += int64_t(p.source->bytes);
        job.bytes += int64_t(p.bytes);
        job.weights += element_count(*p.source);
    }
    return job;
}

// The importance of a tensor's columns; null where the matrix has none for it.
Result<const float*> importance_of(const Job& job, const PlannedTensor& p) {
    if (!job.imatrix || !p.converts) return static_cast<const float*>(nullptr);
    const StoredTensor& t = *p.source;
    const auto found = job.imatrix->columns.find(t.name);
    if (found == job.imatrix->columns.end()) return static_cast<const float*>(nullptr);
    const int64_t matrices = row_count(t) / t.shape[t.shape.size() - 2];
    const auto expected = size_t(matrices * t.shape.back());
    if (found->second.size() == expected) return found->second.data();
    // Rows of embeddings are looked up: their columns were never multiplied by what was measured.
    if (t.name == "token_embd.weight") return static_cast<const float*>(nullptr);
    return bad_input("{}: has {} values for tensor '{}', expected {}: one a column", *job.options.imatrix,
                     found->second.size(), t.name, expected);
}

// Types and sizes alone.
std::string dry_run_text(const Job& job) {
    size_t width = 0;
    for (const PlannedTensor& p : job.plan) width = std::max(width, p.source->name.size());
    std::string text;
    for (const PlannedTensor& p : job.plan)
        text += fmt::format("{:<{}}  {:<20} {:>6} -> {:<6} {:>14} -> {:>14} bytes\n", p.source->name, width,
                            shape_text(p.source->shape), p.source->type,
                            p.converts ? quant_name(p.target) : p.source->type, p.source->bytes, p.bytes);
    return text;
}

std::string totals_text(const Job& job) {
    return fmt::format("{} tensors, {:.2f} -> {:.2f} MB, {:.2f} bits a weight", job.plan.size(),
                       double(job.source_bytes) * 1e-6, double(job.bytes) * 1e-6,
                       8 * double(job.bytes) / double(std::max<int64_t>(job.weights, 1)));
}

// Metadata of the input as it is, and what is new; the table of tensors.
Result<GgufWriter> laid_out(const Job& job) {
    TRY(const MappedFile first, MappedFile::open(job.model->files()[0].path));
    TRY(const GgufContents contents, parse_gguf(first.bytes(), first.path()));
    GgufWriter writer;
    for (const GgufEntry& entry : contents.entries) writer.set(entry.key, std::string(entry.value));
    for (const char* key : {"split.no", "split.count", "split.tensors.count", "general.alignment"})
        writer.erase(key);
    writer.set("general.quantization_version", gguf_u32(2));
    writer.set("general.file_type", gguf_u32(job.type.id));
    if (job.imatrix) {
        writer.set("quantize.imatrix.file", gguf_text(*job.options.imatrix));
        if (!job.imatrix->dataset.empty())
            writer.set("quantize.imatrix.dataset", gguf_text(job.imatrix->dataset));
        writer.set("quantize.imatrix.entries_count", gguf_u32(uint32_t(job.imatrix->columns.size())));
        if (job.imatrix->chunks > 0)
            writer.set("quantize.imatrix.chunks_count", gguf_u32(uint32_t(job.imatrix->chunks)));
    }
    const auto ids = type_ids();
    for (const PlannedTensor& p : job.plan)
        writer.add({p.source->name, p.source->shape, type_id_of(p, ids), p.bytes});
    return writer;
}

// Streams the tensors behind the header.
class Producer {
  public:
    Producer(const Job& job, NewFile& file, ProgressBar& bar)
        : job_(job),
          file_(file),
          bar_(bar),
          threads_(job.options.threads ? int(*job.options.threads) : usable_cores()) {}

    // False: interrupted.
    Result<bool> tensor(const PlannedTensor& p) {
        TRY(const float* const importance, importance_of(job_, p));
        const int64_t rows = row_count(*p.source);
        const int64_t in_row = int64_t(p.source->bytes) / rows, out_row = int64_t(p.bytes) / rows;
        const int64_t slab = std::clamp<int64_t>(kSlabBytes / std::max<int64_t>(in_row, 1), 1, rows);
        for (int64_t first = 0; first < rows; first += slab) {
            if (interrupted()) return false;
            const int64_t count = std::min(slab, rows - first);
            if (p.converts) {
                buffer_.resize(size_t(count * out_row));
                const auto done =
                    quantize_rows(p, first, count, importance, threads_, buffer_.data(), &loss_);
                if (!done.ok()) return bad_input("{}: {}", job_.model->path(), done.error().message);
                TRY_VOID(file_.write(buffer_));
            } else {
                TRY_VOID(file_.write(std::span(p.source->data + first * in_row, size_t(count * in_row))));
            }
            done_ += count * in_row;
            bar_.show(done_, job_.source_bytes);
        }
        unweighted_ += p.converts && job_.imatrix && !importance;
        return true;
    }
    // Relative root of the mean square error of what was converted.
    double loss() const { return loss_.all > 0 ? std::sqrt(loss_.error / loss_.all) : 0; }
    int64_t unweighted() const { return unweighted_; }

  private:
    const Job& job_;
    NewFile& file_;
    ProgressBar& bar_;
    const int threads_;
    std::vector<std::byte> buffer_;
    QuantizeLoss loss_;
    int64_t done_ = 0, unweighted_ = 0;
};

// Where rows do not divide into the blocks of K types, types of more bits take their place, and a type of
// blocks of 32 may be what was meant: it is named where its file is smaller.
void report_fallback(const Job& job) {
    int64_t fell_back = 0;
    for (const PlannedTensor& p : job.plan) fell_back += p.fell_back;
    if (fell_back == 0) return;
    const char* other = job.type.base == Quant::q4_k   ? "Q4_1"
                        : job.type.base == Quant::q5_k ? "Q5_0"
                                                       : "Q5_1";
    int64_t bytes = 0;
    auto plan = plan_quantization(*job.model, *find_file_type(other), job.imatrix.has_value(),
                                  job.options.requantize);
    if (plan.ok())
        for (const PlannedTensor& p : plan.value()) bytes += int64_t(p.bytes);
    log_info("{} rows that do not divide into blocks of 256 weights and got a type of more bits{}",
             fell_back == 1 ? "1 tensor has" : fmt::format("{} tensors have", fell_back),
             bytes > 0 && bytes < job.bytes
                 ? fmt::format("; {} would be smaller: {:.2f} MB, not {:.2f}", other, double(bytes) * 1e-6,
                               double(job.bytes) * 1e-6)
                 : "");
}

void report(const Job& job, const Producer& producer, double seconds) {
    report_fallback(job);
    if (producer.unweighted() > 0)
        log_info("{} tensors are not in the importance matrix and were rounded without",
                 producer.unweighted());
    log_info("{}: {}, relative error {:.4f}, {:.1f} s", job.options.out, totals_text(job), producer.loss(),
             seconds);
}

}  // namespace

Result<int> run_command(const QuantizeOptions& o, Session& session) {
    TRY(const Job job, prepare(o));
    if (o.dry_run) {
        TRY_VOID(session.out.write(dry_run_text(job) + totals_text(job) + "\n"));
        report_fallback(job);
        return 0;
    }
    const Deferred deferred;  // an interrupted run takes its unfinished file away
    TRY(GgufWriter writer, laid_out(job));
    TRY(NewFile file, NewFile::create(o.out));
    TRY_VOID(writer.begin(file));
    ProgressBar bar(STDERR_FILENO, 0.3, "quantising");
    Producer producer(job, file, bar);
    for (const PlannedTensor& p : job.plan) {
        TRY(const bool whole, producer.tensor(p));
        if (!whole) return kExitInterrupted;
        TRY_VOID(writer.end_tensor(file));
    }
    TRY_VOID(file.commit());
    bar.erase();
    report(job, producer, seconds_between(session.started, Clock::now()));
    return 0;
}

}  // namespace sparkinfer
