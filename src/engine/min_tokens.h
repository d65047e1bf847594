// min_tokens.h — a constraint that allows no stop token before so many tokens, around another one or none.
#pragma once
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "engine/engine.h"

namespace sparkinfer {

class MinTokens final : public Constraint {
  public:
    MinTokens(int32_t least, std::vector<TokenId> stops, std::shared_ptr<Constraint> inner)
        : least_(least), stops_(std::move(stops)), inner_(std::move(inner)) {}

    void advance(TokenId token) override {
        ++tokens_;
        if (inner_) inner_->advance(token);
    }
    void mask(std::span<uint32_t> bits) override {
        if (inner_)
            inner_->mask(bits);
        else
            std::fill(bits.begin(), bits.end(), ~0u);
        if (tokens_ >= least_) return;
        const std::vector<uint32_t> allowed(bits.begin(), bits.end());
        for (TokenId stop : stops_) bits[size_t(raw(stop)) / 32] &= ~(1u << (raw(stop) % 32));
        // A grammar that is complete allows nothing but the end: then the end it is.
        if (std::all_of(bits.begin(), bits.end(), [](uint32_t word) { return word == 0; }))
            std::copy(allowed.begin(), allowed.end(), bits.begin());
    }
    void rollback(int32_t tokens) override {
        tokens_ -= tokens;
        if (inner_) inner_->rollback(tokens);
    }

  private:
    int32_t least_, tokens_ = 0;
    std::vector<TokenId> stops_;
    std::shared_ptr<Constraint> inner_;
};

}  // namespace sparkinfer
