#include "scripted_backend.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "cpu/sampler.h"

namespace sparkinfer::test {
namespace {

uint64_t hash_of(std::span<const int32_t> tokens) {
    uint64_t hash = 0xcbf29ce484222325;
    for (const int32_t token : tokens) hash = (hash ^ uint32_t(token)) * 0x100000001b3;
    return hash ^ tokens.size();
}

bool allows(const uint32_t* mask, int32_t token) { return !mask || (mask[token / 32] >> (token % 32) & 1); }

// As the op does when it has chosen a token (cpu/output.cpp).
StopReason stop_of(const Slot& slot, int32_t token) {
    const int32_t* end = slot.stop_id + std::clamp(slot.sampling.stop_ids, 0, kMaxStopIds);
    if (std::find(static_cast<const int32_t*>(slot.stop_id), end, token) != end) return kStopToken;
    return slot.cursor.generated >= slot.cursor.limit ? kStopLimit : kRunning;
}

}  // namespace

ScriptedBackend::ScriptedBackend(std::unique_ptr<Backend> cpu, std::shared_ptr<const Speaker> speaker,
                                 std::shared_ptr<ScriptReport> report)
    : speaker_(std::move(speaker)), report_(std::move(report)) {
    cpu_ = std::move(cpu);
}

Result<Compiled> ScriptedBackend::compile(const Tape& tape) {
    TRY(const Compiled compiled, cpu_->compile(tape));
    for (const Instr& i : tape.instrs())
        if (i.code == OpCode::output && i.output.kind == OutputKind::select)
            outputs_.insert_or_assign(compiled.id, i.output);
    return compiled;
}

Result<Ticket> ScriptedBackend::execute(const Compiled& compiled, std::span<const std::byte> step) {
    const auto start = std::chrono::steady_clock::now();
    TRY(const Ticket ticket, cpu_->execute(compiled, step));  // the CPU is done when it returns
    if (const auto found = outputs_.find(compiled.id); found != outputs_.end()) {
        const Output& op = found->second;
        const int outputs = op.step.header().outputs;
        if (outputs > op.scratch.rows())
            return internal_error("a step of {} answers, with logits of {} only", outputs, op.scratch.rows());
        for (int i = 0; i < outputs; ++i) speak(op, i);
    }
    const std::chrono::duration<double, std::milli> least(speaker_->script().step_ms);
    std::this_thread::sleep_until(start + least);
    return ticket;
}

void ScriptedBackend::speak(const Output& op, int output) {
    Selected& row = static_cast<Selected*>(op.results)[output];
    if (row.token < 0) return;
    Slot& slot = op.slots.slot(row.slot);
    const Cursor& c = slot.cursor;  // already behind the sampled token, which stands at c.index
    const std::span<const int32_t> history(op.slots.history(row.slot), size_t(c.index));
    const auto prompt = size_t(std::clamp(c.prompt, 0, c.index));
    const uint32_t* mask =
        slot.sampling.mask < 0 ? nullptr : op.slots.masks + int64_t(slot.sampling.mask) * op.slots.mask_words;
    const std::span<const int32_t> said = history.subspan(prompt);
    if (said.empty()) spoken_.erase(row.slot);  // another request, maybe with the same prompt
    row.token = next(spoken_of(row.slot, history.first(prompt)), said, mask, row.token);
    const std::span<const float> logits(op.scratch.row(output), size_t(op.head.out));
    row.logprob = float(double(logits[size_t(row.token)]) - log_sum_exp(logits));
    slot.cursor.next_token = row.token;
    slot.cursor.stopped = row.stopped = stop_of(slot, row.token);
}

ScriptedBackend::Spoken& ScriptedBackend::spoken_of(int32_t slot, std::span<const int32_t> prompt) {
    Spoken& spoken = spoken_[slot];
    const uint64_t hash = hash_of(prompt);
    if (spoken.prompt != hash) {
        std::vector<TokenId> ids;
        for (const int32_t token : prompt) ids.push_back(TokenId(token));
        spoken = {hash, speaker_->answer(ids, *report_), false};
    }
    return spoken;
}

int32_t ScriptedBackend::next(Spoken& spoken, std::span<const int32_t> said, const uint32_t* mask,
                              int32_t sampled) {
    const auto same = [](int32_t a, TokenId b) { return a == raw(b); };
    const bool on_track = !spoken.refused && said.size() < spoken.answer.size() &&
                          std::equal(said.begin(), said.end(), spoken.answer.begin(), same);
    const int32_t wanted = on_track ? raw(spoken.answer[said.size()]) : raw(speaker_->end());
    if (allows(mask, wanted)) return wanted;
    if (on_track) {
        std::vector<TokenId> ids;
        for (const int32_t token : said) ids.push_back(TokenId(token));
        report_->refused(speaker_->tokenizer().piece(TokenId(wanted)),
                         speaker_->tokenizer().decode(ids, true));
        spoken.refused = true;
    }
    return sampled;
}

}  // namespace sparkinfer::test
