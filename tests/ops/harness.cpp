#include "harness.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <set>

#include "core/half.h"
#ifdef SPARKINFER_CUDA
#include "cuda/backend.h"
#else
#include "cpu/backend.h"
#endif
#include "quant/decode.h"

namespace sparkinfer::test {
namespace {

constexpr int64_t kHeapBytes = 64 << 20, kGuardBytes = 256;
constexpr unsigned char kPoison = 0xFF, kGuard = 0xA5;  // 0xFFFFFFFF is a NaN

// Reads the host views of the cases.
struct HostSource final : ByteSource {
    Result<void> read(const void* view, std::span<std::byte> to) override {
        memcpy(to.data(), view, to.size());
        return {};
    }
};

bool e4m3_nan(std::byte b) { return (uint8_t(b) & 0x7f) == 0x7f; }

// Random bytes until the block decodes to finite values of moderate size.
void random_block(Random& random, Quant quant, std::byte* block, int64_t bytes, int elements) {
    Weight w;
    w.data = block;
    w.out = 1;
    w.in = elements;
    w.quant = quant;
    Floats values(static_cast<size_t>(elements));
    do {
        for (int64_t i = 0; i < bytes; ++i) block[i] = std::byte(random.byte());
        decode_row(w, 0, 0, values.data());
    } while (!std::all_of(values.begin(), values.end(), [](float v) { return std::abs(v) < 100.0f; }));
}

void random_split(Random& random, OwnedWeight& w) {
    const auto random_code = [&](std::byte& b) {
        do b = std::byte(random.byte());
        while (e4m3_nan(b));
    };
    for (std::byte& b : w.data)
        w.view.quant == Quant::nvfp4_split ? void(b = std::byte(random.byte())) : random_code(b);
    if (w.view.quant == Quant::nvfp4_split)
        for (std::byte& b : w.scales) random_code(b);
    else
        for (size_t i = 0; i + 4 <= w.scales.size(); i += 4) {
            const float scale = random.uniform(0.001f, 0.01f);
            memcpy(&w.scales[i], &scale, 4);
        }
}

void random_plain(Random& random, OwnedWeight& w) {
    const int64_t n = int64_t(w.view.experts) * w.view.out * w.view.in;
    for (int64_t i = 0; i < n; ++i) {
        const float value = random.normal();
        const uint16_t half = w.view.quant == Quant::f16 ? f32_to_f16(value) : f32_to_bf16(value);
        if (w.view.quant == Quant::f32)
            memcpy(&w.data[size_t(i) * 4], &value, 4);
        else
            memcpy(&w.data[size_t(i) * 2], &half, 2);
    }
}

bool split(Quant q) {
    return q == Quant::nvfp4_split || q == Quant::fp8_channel || q == Quant::fp8_tensor ||
           q == Quant::fp8_block;
}

}  // namespace

Floats Random::normals(int64_t n, float scale) {
    Floats values(static_cast<size_t>(n));
    for (float& v : values) v = normal() * scale;
    return values;
}

const std::vector<Quant>& all_quants() {
    // Slab layouts are a device's own: it makes them when it places a weight, no file holds them.
    static const std::vector<Quant> quants = [] {
        std::vector<Quant> list;
        for (Quant q : {
#define X(name, text, id) Quant::name,
                 FOREACH_QUANT(X)
#undef X
             })
            if (!std::string(quant_name(q)).ends_with("-slab")) list.push_back(q);
        return list;
    }();
    return quants;
}

OwnedWeight random_weight(Random& random, Quant quant, int experts, int out, int in, bool with_factor) {
    OwnedWeight w;
    w.view.quant = quant;
    w.view.experts = experts;
    w.view.out = out;
    w.view.in = in;
    const int64_t codes = row_bytes(quant, in) * out * experts;
    w.data.resize(size_t(codes));
    w.scales.resize(size_t(weight_bytes(w.view) - codes));
    if (split(quant))
        random_split(random, w);
    else if (quant == Quant::f32 || quant == Quant::f16 || quant == Quant::bf16)
        random_plain(random, w);
    else {
        const int elements = quant_block(quant);
        const int64_t bytes = row_bytes(quant, elements);
        for (int64_t at = 0; at < codes; at += bytes)
            random_block(random, quant, &w.data[size_t(at)], bytes, elements);
    }
    if (with_factor)
        for (int e = 0; e < experts; ++e) w.scale.push_back(random.uniform(0.5f, 2.0f));
    w.view.data = w.data.data();
    w.view.scales = w.scales.empty() ? nullptr : w.scales.data();
    w.view.scale = w.scale.empty() ? nullptr : w.scale.data();
    w.view.scale_count = int32_t(w.scale.size());
    return w;
}

OwnedWeight f32_weight(const Floats& values, int out, int in, int experts) {
    OwnedWeight w;
    w.data.resize(values.size() * 4);
    memcpy(w.data.data(), values.data(), w.data.size());
    w.view.data = w.data.data();
    w.view.experts = experts;
    w.view.out = out;
    w.view.in = in;
    return w;
}

Doubles decoded(const Weight& w, int expert) {
    Doubles values;
    values.reserve(size_t(w.out) * size_t(w.in));
    for (int r = 0; r < w.out; ++r)
        for (int c = 0; c < w.in; ++c) values.push_back(double(decode_element(w, expert, r, c)));
    return values;
}

void StepImage::add_rows(int slot, int first_index, int count, uint32_t flags) {
    for (int i = first_index; i < first_index + count; ++i)
        rows.push_back({i % 7, slot, i, {i, i, i}, flags, -1});
}

std::vector<std::byte> StepImage::bytes() const {
    StepHeader h{};
    std::vector<std::byte> image(sizeof h);
    const auto append = [&](const auto& values, int32_t& at) {
        at = int32_t(image.size());
        const size_t size = values.size() * sizeof(values[0]);
        image.resize(image.size() + (size + 15) / 16 * 16);
        if (size) memcpy(image.data() + at, values.data(), size);
    };
    h.rows = int32_t(rows.size());
    h.segments = int32_t(segments.size());
    h.outputs = int32_t(outputs.size());
    h.saves = int32_t(saves.size());
    h.changes = int32_t(changes.size());
    h.payload_words = int32_t(payload.size());
    append(rows, h.rows_at);
    append(segments, h.segments_at);
    append(outputs, h.outputs_at);
    append(saves, h.saves_at);
    append(changes, h.changes_at);
    append(payload, h.payload_at);
    h.bytes = int32_t(image.size());
    memcpy(image.data(), &h, sizeof h);
    return image;
}

static bool short_cases = false;
void shorten_cases() { short_cases = true; }
bool cases_are_short() { return short_cases; }

static std::string policy;
void choose_kernels_for(std::string gpu) { policy = std::move(gpu); }
const std::string& kernels_chosen_for() { return policy; }

Machine::Machine(std::string machine_name, std::unique_ptr<Backend> backend)
    : name(std::move(machine_name)), backend_(std::move(backend)) {
    heap_ = backend_->allocate(kHeapBytes, MemoryKind::arena).value();
    step_ = backend_->allocate(kStepBytes, MemoryKind::step).value();
    used_ = kHeapBytes;
    reset();
}

void Machine::write(void* to, const void* from, int64_t count) {
    const auto ticket = backend_->copy({static_cast<std::byte*>(to), size_t(count)},
                                       {static_cast<const std::byte*>(from), size_t(count)}, {});
    ASSERT_TRUE(ticket.ok() && backend_->done(ticket.value(), true).ok());
}

void Machine::read(void* to, const void* from, int64_t count) { write(to, from, count); }

void Machine::reset() {
    const std::vector<unsigned char> poison(size_t(used_), kPoison);
    write(heap_.data, poison.data(), used_);
    used_ = 0;
    guards_.clear();
}

std::byte* Machine::bytes(int64_t count) {
    if (cases_are_short()) {  // under a tool that watches the bounds of each allocation
        const Memory own = backend_->allocate(count, MemoryKind::arena).value();
        const std::vector<unsigned char> poison(size_t(count), kPoison);
        write(own.data, poison.data(), count);
        return own.data;
    }
    const std::vector<unsigned char> guard(kGuardBytes, kGuard);
    const auto add_guard = [&] {
        guards_.push_back(used_);
        write(heap_.data + used_, guard.data(), kGuardBytes);
        used_ += kGuardBytes;
    };
    add_guard();
    std::byte* at = heap_.data + used_;
    used_ += (count + 255) / 256 * 256;
    add_guard();
    CHECK(used_ <= kHeapBytes, "the case needs {} bytes", used_);
    return at;
}

Tensor Machine::tensor(int rows, int a, int b) {
    Tensor t;
    t.shape[0] = rows;
    t.shape[1] = a;
    t.shape[2] = b;
    t.rank = b == 1 ? 2 : 3;
    t.stride = t.cols() + 16;
    t.data = bytes(rows * t.stride * 4);
    return t;
}

Tensor Machine::tensor(int rows, int cols) { return tensor(rows, cols, 1); }

Tensor Machine::tensor(const Floats& values, int rows, int cols) {
    Tensor t = tensor(rows, cols);
    write(t, values);
    return t;
}

void Machine::write(const Tensor& t, const Floats& values) {
    CHECK(int64_t(values.size()) == t.elements(), "{} values for {}", values.size(), t.elements());
    if (values.empty()) return;
    Floats all(size_t(t.rows() * t.stride));  // one copy; poison between the rows
    memset(all.data(), kPoison, all.size() * 4);
    for (int64_t r = 0; r < t.rows(); ++r)
        memcpy(&all[size_t(r * t.stride)], &values[size_t(r * t.cols())], size_t(t.cols()) * 4);
    write(t.data, all.data(), int64_t(all.size()) * 4);
}

Floats Machine::read(const Tensor& t) {
    // Between rows the poison must still be there.
    Floats all(size_t(t.rows() * t.stride)), values(static_cast<size_t>(t.elements()));
    read(all.data(), t.data, int64_t(all.size()) * 4);
    for (int64_t r = 0; r < t.rows(); ++r) {
        memcpy(&values[size_t(r * t.cols())], &all[size_t(r * t.stride)], size_t(t.cols()) * 4);
        for (int64_t c = t.cols(); c < t.stride; ++c)
            EXPECT_TRUE(std::isnan(all[size_t(r * t.stride + c)])) << name << ": written behind row " << r;
    }
    return values;
}

SlotsView Machine::slots(int count, int max_pages, int vocabulary, int mask_rows) {
    SlotsView v;
    v.count = count;
    v.max_pages = max_pages;
    v.max_tokens = max_pages * kPageTokens;
    v.stride = slot_bytes(v.max_pages, v.max_tokens);
    v.base = bytes(v.stride * count);
    v.mask_words = (vocabulary + 31) / 32;
    v.masks = reinterpret_cast<uint32_t*>(bytes(int64_t(4) * v.mask_words * std::max(mask_rows, 1)));
    const std::vector<std::byte> zero(size_t(v.stride * count));
    write(v.base, zero.data(), int64_t(zero.size()));
    for (int s = 0; s < count; ++s) {
        std::vector<int32_t> pages;
        pages.reserve(size_t(max_pages));
        for (int i = 0; i < max_pages; ++i) pages.push_back(s * max_pages + max_pages - 1 - i);
        write(v.pages(s), pages.data(), int64_t(pages.size()) * 4);
    }
    return v;
}

Slot Machine::slot(const SlotsView& view, int s) {
    Slot value;
    read(&value, view.base + s * view.stride, sizeof value);
    return value;
}

void Machine::set_slot(const SlotsView& view, int s, const Slot& value) {
    write(view.base + s * view.stride, &value, sizeof value);
}

void Machine::set_history(const SlotsView& view, int s, const std::vector<int32_t>& tokens) {
    write(view.history(s), tokens.data(), int64_t(tokens.size()) * 4);
}

// What a device makes of weights follows from their bytes alone, so weights seen before are not placed again.
static std::string content(const WeightGroup& group) {
    std::string key = op_name(group.op);
    const auto add_hash = [&](const void* data, int64_t bytes) {
        const std::string_view all(static_cast<const char*>(data), data ? size_t(bytes) : 0);
        key += fmt::format(" {:x}:{}", std::hash<std::string_view>{}(all), all.size());
    };
    for (const Weight& w : group.weights) {
        const int64_t rows = int64_t(w.experts - 1) * (w.expert_rows ? w.expert_rows : w.out) + w.out;
        key += fmt::format("; {} {} {} {} {}", int(w.quant), w.experts, w.expert_rows, w.out, w.in);
        add_hash(w.data, rows * row_bytes(w.quant, w.in));
        add_hash(w.scales, weight_bytes(w) - int64_t(w.experts) * w.out * row_bytes(w.quant, w.in));
        add_hash(w.scale, int64_t(w.scale_count) * 4);
    }
    return key;
}

std::vector<Weight> Machine::place(const WeightGroup& group) {
    if (group.weights.empty()) return {};
    const bool device = !backend_->info().host_memory;
    const std::string key = device ? content(group) : "";
    if (const auto known = placed_.find(key); known != placed_.end()) return known->second;
    HostSource source;
    auto placed = backend_->place(group, source);
    CHECK(placed.ok(), "{}", placed.error().message);
    CHECK(placed.value().size() == group.weights.size(), "{} weights placed of {}", placed.value().size(),
          group.weights.size());
    if (device) placed_[key] = placed.value();
    return std::move(placed).value();
}

static std::set<std::string> variants;
std::vector<std::string> variants_run() { return {variants.begin(), variants.end()}; }

void Machine::run_placed(const Instr& instr, const StepImage& step) {
    Tape tape(this->step(), {}, nullptr);
    tape.instrs().push_back(instr);
    auto compiled = backend_->compile(tape);
    ASSERT_TRUE(compiled.ok()) << compiled.error().message;
    const auto image = step.bytes();
    ASSERT_LE(int64_t(image.size()), kStepBytes);
    for (const LaunchInfo& launch : backend_->launches(compiled.value()))
        variants.insert(std::string(op_name(instr.code)) + ": " + launch.variant);
    auto ticket = backend_->execute(compiled.value(), image);
    ASSERT_TRUE(ticket.ok()) << ticket.error().message;
    auto done = backend_->done(ticket.value(), true);
    ASSERT_TRUE(done.ok()) << done.error().message;
    backend_->release(compiled.value());
    check_guards(op_name(instr.code));
}

// Guards that lie near each other are read at once.
void Machine::check_guards(const char* op) {
    constexpr int64_t kNear = 64 << 10;
    std::vector<unsigned char> span;
    for (size_t first = 0, last; first < guards_.size(); first = last) {
        for (last = first + 1; last < guards_.size() && guards_[last] - guards_[last - 1] < kNear;) ++last;
        span.resize(size_t(guards_[last - 1] - guards_[first] + kGuardBytes));
        read(span.data(), heap_.data + guards_[first], int64_t(span.size()));
        for (size_t i = first; i < last; ++i) {
            const auto guard = span.begin() + (guards_[i] - guards_[first]);
            EXPECT_TRUE(std::all_of(guard, guard + kGuardBytes, [](unsigned char c) { return c == kGuard; }))
                << name << ": " << op << " wrote outside its tensors, near heap offset " << guards_[i];
        }
    }
}

std::vector<Machine*> machines() {
    static std::vector<std::unique_ptr<Machine>> all = [] {
        std::vector<std::unique_ptr<Machine>> list;
#ifdef SPARKINFER_CUDA
        for (const CudaExecutor executor : {CudaExecutor::op_by_op, CudaExecutor::graph}) {
            if (executor == CudaExecutor::graph && cases_are_short()) continue;
            auto backend = make_cuda_backend({.executor = executor, .policy = kernels_chosen_for()});
            CHECK(backend.ok(), "{}", backend.error().message);
            list.push_back(
                std::make_unique<Machine>(executor == CudaExecutor::graph ? "cuda, graph" : "cuda, op by op",
                                          std::move(backend).value()));
        }
#else
        for (const Activations kind : {Activations::f32, Activations::int16, Activations::int8})
            for (const int threads : {1, 2, 3}) {
                if (kind != Activations::f32 && threads == 2) continue;
                auto backend = make_cpu_backend({.threads = threads, .activations = kind}).value();
                if (backend->info().activations != activations_name(kind)) continue;  // no such instructions
                const std::string family =
                    kind == Activations::f32 ? "cpu" : std::string("cpu ") + activations_name(kind);
                list.push_back(std::make_unique<Machine>(fmt::format("{}, threads {}", family, threads),
                                                         std::move(backend)));
            }
#endif
        return list;
    }();
    std::vector<Machine*> list;
    list.reserve(all.size());
    for (const auto& m : all) list.push_back(m.get());
    return list;
}

double relative_l2(const Floats& got, const Doubles& want, size_t* worst) {
    double error = 0, norm = 0, most = -1;
    for (size_t i = 0; i < want.size(); ++i) {
        const double e = double(got[i]) - want[i];
        error += e * e;
        norm += want[i] * want[i];
        if (worst && !(std::abs(e) <= most)) most = std::abs(e), *worst = i;
    }
    return std::sqrt(error / std::max(norm, 1e-300));
}

void expect_close(const std::string& what, const Floats& got, const Doubles& want, double most) {
    ASSERT_EQ(got.size(), want.size()) << what;
    size_t worst = 0;
    const double error = relative_l2(got, want, &worst);
    EXPECT_TRUE(error <= most) << what << ": relative L2 error " << error << " > " << most << ", worst at "
                               << worst << ": " << got[worst] << " for " << want[worst];
}

void expect_same_bits(const std::string& what, const Floats& got, const Floats& want) {
    ASSERT_EQ(got.size(), want.size()) << what;
    for (size_t i = 0; i < want.size(); ++i)
        if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i])) {
            ADD_FAILURE() << what << ": differs at " << i << ": " << got[i] << " for " << want[i];
            return;
        }
}

Doubles rms_normed(const Floats& x, const Doubles& norm, int64_t width, double eps) {
    Doubles n(x.size());
    for (size_t at = 0; at < x.size(); at += size_t(width)) {
        double sum = 0;
        for (int64_t i = 0; i < width; ++i) sum += double(x[at + i]) * double(x[at + i]);
        for (int64_t i = 0; i < width; ++i)
            n[at + i] = x[at + i] / std::sqrt(sum / double(width) + eps) * norm[i];
    }
    return n;
}

Doubles product(const Doubles& x, const Doubles& w, int64_t in) {
    const size_t rows = x.size() / size_t(in), out = w.size() / size_t(in);
    Doubles y(rows * out);
    for (size_t t = 0; t < rows; ++t)
        for (size_t o = 0; o < out; ++o)
            for (int64_t i = 0; i < in; ++i) y[t * out + o] += x[t * in + i] * w[o * in + i];
    return y;
}

}  // namespace sparkinfer::test
