// harness.h — what the op cases share: machines to run on, guarded and poisoned memory, random weights of
// every format, steps and slots built by hand, and comparison with float64.
//
// A case fills in an op, runs it on every machine of machines() and compares with a plain computation of its
// own. All memory goes through the Backend interface, so a backend on a device joins by adding itself to
// machines().
#pragma once
#include <gtest/gtest.h>

#include <climits>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "ops/backend.h"

namespace sparkinfer::test {

using Doubles = std::vector<double>;
using Floats = std::vector<float>;

// One generator a case, seeded by its name, so that a failure repeats.
class Random {
  public:
    explicit Random(const std::string& name) : engine_(std::hash<std::string>{}(name)) {}
    float normal() { return std::normal_distribution<float>()(engine_); }
    int below(int n) { return int(engine_() % uint64_t(n)); }
    float uniform(float low, float high) { return std::uniform_real_distribution<float>(low, high)(engine_); }
    Floats normals(int64_t n, float scale = 1.0f);
    uint8_t byte() { return uint8_t(engine_() >> 24); }

  private:
    std::mt19937_64 engine_;
};

// A weight and the bytes it views.
struct OwnedWeight {
    std::vector<std::byte> data, scales;
    Floats scale;
    Weight view;  // of the vectors above; valid while this lives, also after a move
    operator const Weight&() const { return view; }
};
// Random blocks with finite values; with_factor: also Weight::scale, one an expert.
OwnedWeight random_weight(Random& random, Quant quant, int experts, int out, int in,
                          bool with_factor = false);
OwnedWeight f32_weight(const Floats& values, int out, int in, int experts = 1);
const std::vector<Quant>& all_quants();
// [out, in] of one expert, by the defining decoder.
Doubles decoded(const Weight& w, int expert = 0);
inline Weight empty_weight() { return {}; }

// A step written by hand.
struct StepImage {
    std::vector<Row> rows;
    std::vector<Segment> segments;
    std::vector<int32_t> outputs;
    std::vector<Save> saves;
    std::vector<SlotChange> changes;
    std::vector<uint32_t> payload;
    std::vector<std::byte> bytes() const;
    // Rows `first` … of one sequence at ascending indices; tokens are arbitrary.
    void add_rows(int slot, int first_index, int count, uint32_t flags = 0);
};

constexpr int64_t kStepBytes = 1 << 20;

// One backend with a heap of guarded tensors.
class Machine {
  public:
    Machine(std::string machine_name, std::unique_ptr<Backend> backend);
    const std::string name;  // "cpu, threads 2"
    // Machines of one family compute the same bits; others come within a tolerance.
    std::string family() const { return name.substr(0, name.find(',')); }
    bool is_cpu() const { return family().starts_with("cpu"); }
    // For a device, or integers on the CPU: 16-bit activations.
    // Many rows on a device: FP16, weights too (their scales round to 11 bits before they meet their codes).
    double tolerance(double cpu, int rows = 1) const {
        if (family() == "cpu int8") return std::max(cpu, 256 * 1.2e-4);
        if (family() == "cpu int16") return std::max(cpu, 1.2e-4);
        return family() == "cpu" ? cpu : std::max(cpu, rows > rows_of_one_form() ? 8e-4 : 6e-5);
    }
    // Of silu(gate) · up: two products' errors, the gate's made greater by silu.
    double glu_tolerance(double cpu, int rows = 1) const {
        if (family() == "cpu int8") return std::max(cpu, 256 * 3e-4);
        if (family() == "cpu int16") return std::max(cpu, 3e-4);
        return family() == "cpu" ? cpu : std::max(cpu, rows > rows_of_one_form() ? 1.6e-3 : 2e-4);
    }
    // A row's bits do not depend on the number of rows up to so many; beyond, a device has other kernels.
    int rows_of_one_form() const { return is_cpu() ? INT_MAX : 8; }
    Backend& backend() { return *backend_; }

    // Forgets all tensors; poisons the whole heap with NaN.
    void reset();
    // [rows, cols] or [rows, a, b], poisoned, rows further apart than they are long, guard bands around.
    Tensor tensor(int rows, int cols);
    Tensor tensor(int rows, int a, int b);
    Tensor tensor(const Floats& values, int rows, int cols);
    std::byte* bytes(int64_t count);  // raw, poisoned, guarded
    Floats read(const Tensor& t);
    void write(const Tensor& t, const Floats& values);
    void write(void* to, const void* from, int64_t count);
    void read(void* to, const void* from, int64_t count);

    // Zeroed slots with every page of slot s at s·max_pages + i, in reversed order.
    SlotsView slots(int count, int max_pages, int vocabulary = 0, int mask_rows = 0);
    Slot slot(const SlotsView& view, int s);
    void set_slot(const SlotsView& view, int s, const Slot& value);
    void set_history(const SlotsView& view, int s, const std::vector<int32_t>& tokens);
    StepView step() const { return StepView{step_.data}; }

    // Places the weights, as a model's are: those of an op together; compiles and runs the op; fails the test
    // when a guard was touched.
    template <class Op>
    void run(Op op, const StepImage& step = {}) {
        WeightGroup group{Instr(op).code, {}};
        for_each_weight(op, [&](Weight& w) { group.weights.push_back(w); });
        const std::vector<Weight> placed = place(group);
        size_t next = 0;
        for_each_weight(op, [&](Weight& w) { w = placed[next++]; });
        run_placed(Instr(op), step);
    }

  private:
    std::vector<Weight> place(const WeightGroup& group);
    void run_placed(const Instr& instr, const StepImage& step);
    void check_guards(const char* op);

    std::unique_ptr<Backend> backend_;
    Memory heap_, step_;
    int64_t used_ = 0;
    std::vector<int64_t> guards_;                        // offsets of guard bands in the heap, ascending
    std::map<std::string, std::vector<Weight>> placed_;  // on a device, by content
};

// Every machine that must pass the cases: the CPU with 1, 2 and 3 threads; in a binary for the GPU the device
// op by op and with graphs.
std::vector<Machine*> machines();
// One machine alone, op by op, and the cases that are many alike shortened: for tools that slow a kernel down
// a hundredfold. Call before the first machines().
void shorten_cases();
bool cases_are_short();
// Kernels are chosen as for that GPU: CudaOptions::policy.
void choose_kernels_for(std::string gpu);
const std::string& kernels_chosen_for();
// "op: variant" of every kernel that a backend says it has run, in order.
std::vector<std::string> variants_run();

double relative_l2(const Floats& got, const Doubles& want, size_t* worst = nullptr);
// Fails with the worst position when the relative L2 error is above `most`, or a value is not finite.
void expect_close(const std::string& what, const Floats& got, const Doubles& want, double most = 1e-6);
// Fails at the first value whose bits differ.
void expect_same_bits(const std::string& what, const Floats& got, const Floats& want);
// Fails where machines of one family differ: one object compares the answers to one question.
class FamilyBits {
  public:
    void expect(const Machine& m, const std::string& what, const Floats& got) {
        const auto [first, fresh] = first_.try_emplace(m.family(), got);
        if (!fresh) expect_same_bits(m.name + ' ' + what, got, first->second);
    }

  private:
    std::map<std::string, Floats> first_;
};
// Columns [from, from + count) of row r of a row-major array.
template <class T>
std::vector<T> slice(const std::vector<T>& all, int64_t from, int64_t count) {
    return {all.begin() + from, all.begin() + from + count};
}

// n[t] = x[t] / sqrt(mean(x²) + eps) · norm, in float64.
Doubles rms_normed(const Floats& x, const Doubles& norm, int64_t width, double eps);
// y [T, out] = x [T, in] · w [out, in]ᵀ
Doubles product(const Doubles& x, const Doubles& w, int64_t in);
inline double sigmoid64(double x) { return 1.0 / (1.0 + std::exp(-x)); }
inline double silu64(double x) { return x * sigmoid64(x); }

}  // namespace sparkinfer::test
