// kl_base.h — the log-probabilities of a base model as llama-perplexity saves them (--save-all-logits, there
// --kl-divergence-base), and what another model's logits are away from them.
//
// The file: "_logits_"; i32 window W, i32 vocabulary V, i32 windows N; i32 tokens[N·W]; then for each window,
// for each row of W/2 … W−2 (row i predicts token i + 1): f32 scale, f32 least, u16 code[V], one u16 of
// padding when V is odd. log p = scale·code + least; what is more than 16 below the best logit is there as 16
// below.
#pragma once
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "core/file.h"
#include "core/new_file.h"
#include "core/result.h"
#include "core/types.h"

namespace sparkinfer {

inline int64_t kl_rows(int64_t window) { return window - 1 - window / 2; }  // of a window
inline int64_t kl_row_bytes(int64_t vocab) { return 8 + 2 * ((vocab + 1) / 2 * 2); }

// A row of logits as it lies in the file: kl_row_bytes(logits.size()) bytes.
void encode_kl_row(std::span<const float> logits, std::byte* out);

// Writes such a file row by row; it appears with commit(), or not at all.
class KlBaseWriter {
  public:
    // `tokens`: whole windows. Claims the file's size on the disk.
    static Result<KlBaseWriter> create(const std::string& path, std::span<const TokenId> tokens,
                                       int64_t window, int64_t vocab);
    Result<void> write_row(std::span<const float> logits);
    Result<void> commit() { return file_.commit(); }

  private:
    explicit KlBaseWriter(NewFile file) : file_(std::move(file)) {}
    NewFile file_;
    std::vector<std::byte> row_;
};

class KlBase {
  public:
    // Errors: no such file, another length than its header promises, tokens outside of its vocabulary.
    static Result<KlBase> open(const std::string& path);
    int64_t window() const { return window_; }
    int64_t vocab() const { return vocab_; }
    const std::vector<TokenId>& tokens() const { return tokens_; }
    const std::string& path() const { return file_.path(); }
    // Row `row` (0 … rows − 1, all windows counted through); out[0 … V) = log p. Errors: a scale that is no
    // number.
    Result<void> log_probabilities(int64_t row, std::span<float> out) const;

  private:
    explicit KlBase(MappedFile file) : file_(std::move(file)) {}
    MappedFile file_;
    int64_t window_ = 0, vocab_ = 0;
    std::vector<TokenId> tokens_;
};

// Collects, over all rated positions, how a model's probabilities differ from the base's.
class KlStatistics {
  public:
    // `logits` of the model and `base` (log p) before `token` came.
    void add(std::span<const float> logits, std::span<const float> base, TokenId token);
    int64_t count() const { return int64_t(kl_.size()); }
    // Perplexities, mean, percentiles and extremes of the divergence, changes of the token's probability, how
    // often the best token is the same. REQUIRES: count() > 0.
    std::string report() const;

  private:
    std::string perplexity_report() const;
    std::vector<float> kl_, p_change_;    // nat; share
    std::vector<double> nll_, base_nll_;  // nat
    int64_t same_top_ = 0;
};

}  // namespace sparkinfer
