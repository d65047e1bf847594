#include "cuda/lowered.h"

#include <algorithm>
#include <set>

#include "cuda/backend.h"
#include "cuda/linear_slab.h"
#include "cuda/placement.h"
#include "quant/slab.h"

namespace sparkinfer {
namespace cuda {
namespace {

bool is_plain(const Launch& l) {
    return std::string_view(l.variant) == "generic" || std::string_view(l.variant) == "plain";
}

// Why an op has no fast kernel, as far as formats tell; else it is the shape.
template <class Op>
std::string cause(const Op& op) {
    std::vector<std::string> formats;
    for_each_weight(op, [&](const Weight& w) {
        const bool plain_float = w.quant == Quant::f32 || w.quant == Quant::f16 || w.quant == Quant::bf16;
        if (is_slab(w.quant) || plain_float) return;
        Quant slab;
        std::string format = quant_name(w.quant);
        if (w.in % kSlabColumns || w.out % kSlabRows)
            format += fmt::format(" [{}, {}]", w.out, w.in);
        else if (slab_of(w.quant, &slab))
            format += " as the file has it";  // its scales, or a gate and up of two formats
        if (std::find(formats.begin(), formats.end(), format) == formats.end())
            formats.push_back(std::move(format));
    });
    std::string text;
    for (const std::string& format : formats) text += (text.empty() ? "" : ", ") + format;
    return text.empty() ? "its shape" : text;
}
std::string cause(const Attention& op) {
    return fmt::format("{} heads of width {} over {}", op.heads, op.kv.width, op.kv.heads);
}

}  // namespace

DeviceInfo known_device(const std::string& gpu) {
    struct Known {
        const char *key, *name;
        int32_t major, minor, sms, shared_block, shared_sm;
    };
    constexpr Known kKnown[] = {{"h200", "H200", 9, 0, 132, 227 << 10, 228 << 10},
                                {"rtx5090", "RTX 5090", 12, 0, 170, 99 << 10, 100 << 10},
                                {"pro6000", "RTX PRO 6000", 12, 0, 188, 99 << 10, 100 << 10},
                                {"spark", "DGX Spark", 12, 1, 48, 99 << 10, 100 << 10}};
    DeviceInfo d;
    for (const Known& k : kKnown) {
        if (gpu != k.key) continue;
        d.name = k.name, d.major = k.major, d.minor = k.minor, d.sms = k.sms;
        d.shared_block = k.shared_block, d.shared_sm = k.shared_sm, d.wgmma = k.major == 9;
    }
    return d;
}

int32_t rows_of(const Tape& tape) {
    for (const Instr& i : tape.instrs())
        if (i.code == OpCode::embed) return i.embed.y.rows();
    return 0;
}

void plan_weights(Tape& tape) {
    for (Instr& i : tape.instrs())
        visit(i, [&](auto& op) {
            WeightGroup group{i.code, {}};
            for_each_weight(op, [&](const Weight& w) { group.weights.push_back(w); });
            const std::vector<Weight> planned = planned_weights(group);
            size_t n = 0;
            for_each_weight(op, [&](Weight& w) { w = planned[n++]; });
        });
}

void lower_tape(Lowering& l, const Tape& tape) {
    const std::vector<Instr>& instrs = tape.instrs();
    for (size_t pc = 0; pc < instrs.size(); ++pc) {
        l.begin(int32_t(pc), op_name(instrs[pc].code), pc + 1 < instrs.size() ? &instrs[pc + 1] : nullptr);
        visit(instrs[pc], [&](const auto& op) { lower(l, op); });
    }
}

std::vector<LaunchInfo> launch_infos(const std::vector<Launch>& launches,
                                     const std::vector<std::vector<float>>& us) {
    std::vector<LaunchInfo> all;
    for (size_t i = 0; i < launches.size(); ++i) {
        all.push_back({launches[i].pc, launches[i].variant, 0, 0});
        if (us.size() != launches.size() || us[i].empty()) continue;
        std::vector<float> sorted = us[i];
        std::nth_element(sorted.begin(), sorted.begin() + int64_t(sorted.size() / 2), sorted.end());
        all.back().us = sorted[sorted.size() / 2];
        all.back().count = int32_t(sorted.size());
    }
    return all;
}

std::string plain_notice(const Tape& tape, const std::vector<Launch>& launches) {
    std::set<int32_t> plain;
    for (const Launch& l : launches)
        if (is_plain(l)) plain.insert(l.pc);
    if (plain.empty()) return {};
    const int32_t rows = rows_of(tape);
    std::vector<std::pair<std::string, int>> kinds;  // an op and its cause, in order of appearance
    for (const int32_t pc : plain) {
        const Instr& instr = tape.instrs()[size_t(pc)];
        const std::string why = visit(instr, [](const auto& op) { return cause(op); });
        const std::string kind = fmt::format("{}|{}", op_name(instr.code), why);
        const auto known =
            std::find_if(kinds.begin(), kinds.end(), [&](const auto& k) { return k.first == kind; });
        if (known == kinds.end())
            kinds.emplace_back(kind, 1);
        else
            ++known->second;
    }
    std::string list;
    for (const auto& [kind, count] : kinds) {
        const size_t bar = kind.find('|');
        list += fmt::format("{}{} × {} ({})", list.empty() ? "" : ", ", kind.substr(0, bar), count,
                            kind.substr(bar + 1));
    }
    return fmt::format("{} of {} ops of a step of {} row{} run on plain kernels: {}", plain.size(),
                       tape.instrs().size(), rows, rows == 1 ? "" : "s", list);
}

}  // namespace cuda

CudaLowering cuda_lowering(const Tape& tape, const std::string& gpu) {
    Tape planned = tape;
    cuda::plan_weights(planned);
    const cuda::DeviceInfo device = cuda::known_device(gpu);
    CHECK(device.sms > 0, "the GPU '{}' is not known", gpu);
    cuda::Lowering l(device, nullptr);
    cuda::lower_tape(l, planned);
    CudaLowering answer{cuda::launch_infos(l.launches(), {}), {}};
    if (std::string notice = cuda::plain_notice(planned, l.launches()); !notice.empty())
        answer.notices.push_back(std::move(notice));
    return answer;
}

}  // namespace sparkinfer
