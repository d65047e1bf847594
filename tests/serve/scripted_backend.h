// scripted_backend.h — the CPU backend whose `output` op says what a script has, under the request's mask.
// All else is as in the product: the rows are computed, sampled, advanced; only the token is exchanged at the
// end.
#pragma once
#include <map>
#include <memory>

#include "engine/test_backend.h"
#include "script.h"

namespace sparkinfer::test {

class ScriptedBackend final : public OverCpu {
  public:
    // `report` hears of each answer and of each token that the mask refused; then the sampled one, which is
    // allowed, takes its place and the answer ends as soon as the mask lets it.
    ScriptedBackend(std::unique_ptr<Backend> cpu, std::shared_ptr<const Speaker> speaker,
                    std::shared_ptr<ScriptReport> report);
    Result<MemoryNeed> plan(std::span<const WeightGroup> groups, std::span<const Tape> tapes) override {
        return cpu_->plan(groups, tapes);
    }
    Result<Compiled> compile(const Tape& tape) override;
    Result<Ticket> execute(const Compiled& compiled, std::span<const std::byte> step) override;
    void release(const Compiled& compiled) override {
        outputs_.erase(compiled.id);
        cpu_->release(compiled);
    }

  private:
    struct Spoken {
        uint64_t prompt = 0;          // hash of its tokens
        std::vector<TokenId> answer;  // empty: nothing to say
        bool refused = false;
    };
    void speak(const Output& op, int output);
    Spoken& spoken_of(int32_t slot, std::span<const int32_t> prompt);
    int32_t next(Spoken& spoken, std::span<const int32_t> said, const uint32_t* mask, int32_t sampled);

    std::shared_ptr<const Speaker> speaker_;
    std::shared_ptr<ScriptReport> report_;
    std::map<int32_t, Output> outputs_;  // of compiled tapes that select tokens
    std::map<int32_t, Spoken> spoken_;   // by slot
};

}  // namespace sparkinfer::test
