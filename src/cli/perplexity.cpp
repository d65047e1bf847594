// perplexity.cpp — `sparkinfer perplexity`: how well a model predicts a text, and its raw logits.
//
// -f: the arithmetic of llama.cpp's llama-perplexity: windows of --ctx tokens without overlap, the first
// token of each replaced by BOS when the file adds one, tokens of the second half rated, the incomplete last
// window left out.
// --tokens: ids as given; every token but a window's first is rated.
// --save-kl-base, --kl-base: the log-probabilities of -f, saved and compared with, in llama-perplexity's
// format (kl_base.h); the latter takes tokens and windows from the file.
#include <cmath>
#include <optional>

#include "cli/commands.h"
#include "cli/kl_base.h"
#include "cli/model_facts.h"
#include "cli/npy.h"
#include "core/log.h"
#include "text/tokenizer.h"

namespace sparkinfer {

namespace {

constexpr int64_t kDefaultWindow = 512;  // as llama-perplexity
constexpr int32_t kChunk = 128;          // rows in one step; few enough that Ctrl-C is heard soon

// Mean and error of -log p over rated tokens.
struct Estimate {
    int64_t count = 0;
    double sum = 0, squares = 0;
    void add(double nll) {
        ++count;
        sum += nll;
        squares += nll * nll;
    }
    double perplexity() const { return std::exp(sum / double(count)); }
    // Of the perplexity, from the variance of the mean.
    double error() const {
        const double mean = sum / double(count), variance = squares / double(count) - mean * mean;
        return count > 1 && variance > 0 ? std::sqrt(variance / double(count - 1)) * perplexity() : 0;
    }
};

// -log softmax(logits)[token]
double negative_log_probability(std::span<const float> logits, TokenId token) {
    float most = logits[0];
    for (const float logit : logits) most = std::max(most, logit);
    double sum = 0;
    for (const float logit : logits) sum += std::exp(double(logit - most));
    return std::log(sum) + double(most) - double(logits[size_t(raw(token))]);
}

struct Windows {
    std::vector<TokenId> tokens;
    int64_t window = 0;            // tokens
    std::optional<TokenId> begin;  // replaces the first token of each window
    bool second_half = false;      // rate only that; else all but the first token
    int64_t complete() const { return int64_t(tokens.size()) / window; }
};

Result<Windows> windows_of_text(const PerplexityOptions& o, const ModelFacts& facts) {
    TRY(const Tokenizer tokenizer, Tokenizer::from_metadata(facts.metadata));
    TRY(const std::string text, read_text({{}, o.file}, "the text"));
    Windows w;
    w.window = o.context.value_or(std::min<int64_t>(kDefaultWindow, facts.shape.context));
    w.second_half = true;
    TRY(w.tokens, tokenizer.encode(text, Tokenizer::Specials::none));
    // Whether the file adds a BOS shows in what it makes of a text.
    if (tokenizer.bos() && !w.tokens.empty() && w.tokens.front() == *tokenizer.bos())
        w.begin = tokenizer.bos();
    if (w.window < 4)
        return usage_error("--ctx is {}, expected at least 4 to have a second half to rate", w.window);
    if (int64_t(w.tokens.size()) < 2 * w.window)
        return bad_input("{}: has {} tokens, expected at least {}: two windows of {} (--ctx)", *o.file,
                         w.tokens.size(), 2 * w.window, w.window);
    return w;
}

Result<Windows> windows_of_ids(const PerplexityOptions& o, const ModelFacts& facts) {
    TRY(const std::vector<int32_t> ids, read_npy_ids(*o.tokens));
    if (ids.empty()) return bad_input("{}: holds no tokens, expected at least one", *o.tokens);
    Windows w;
    for (size_t i = 0; i < ids.size(); ++i) {
        if (ids[i] >= facts.shape.vocab)
            return bad_input("{}: value {} is {}, expected an id of the vocabulary, 0 to {}", *o.tokens, i,
                             ids[i], facts.shape.vocab - 1);
        w.tokens.push_back(TokenId(ids[i]));
    }
    w.window = o.context.value_or(int64_t(ids.size()));
    if (w.window > facts.shape.context && !o.context)
        return bad_input(
            "{}: has {} tokens and {} was made for a context of {}; --ctx cuts them into windows", *o.tokens,
            ids.size(), facts.metadata.source(), facts.shape.context);
    return w;
}

// The windows that a file of log-probabilities was made of.
Result<Windows> windows_of_base(const KlBase& base, const ModelFacts& facts) {
    if (base.vocab() != facts.shape.vocab)
        return bad_input("{}: has log-probabilities of a vocabulary of {}, and {} has one of {}", base.path(),
                         base.vocab(), facts.metadata.source(), facts.shape.vocab);
    if (base.window() > facts.shape.context)
        return bad_input("{}: has windows of {} tokens, and {} was made for a context of {}", base.path(),
                         base.window(), facts.metadata.source(), facts.shape.context);
    TRY(const Tokenizer tokenizer, Tokenizer::from_metadata(facts.metadata));
    Windows w;
    w.tokens = base.tokens();
    w.window = base.window();
    w.second_half = true;
    if (tokenizer.bos() && w.tokens.front() == *tokenizer.bos()) w.begin = tokenizer.bos();
    return w;
}

// Where the logits go besides the perplexity.
struct Sinks {
    std::optional<NpyWriter> npy;
    std::optional<KlBaseWriter> kl_writer;
    std::optional<KlBase> kl_base;
    std::vector<float> base_row = {};  // of kl_base
    int64_t next_row = 0;
    KlStatistics kl = {};

    // A rated row that predicts `token`.
    Result<void> rated(std::span<const float> logits, TokenId token) {
        if (kl_writer) TRY_VOID(kl_writer->write_row(logits));
        if (!kl_base) return {};
        base_row.resize(logits.size());
        TRY_VOID(kl_base->log_probabilities(next_row++, base_row));
        kl.add(logits, base_row, token);
        return {};
    }
    Result<void> commit() {
        if (npy) TRY_VOID(npy->commit());
        if (kl_writer) TRY_VOID(kl_writer->commit());
        return {};
    }
};

// Runs window after window; what is rated and what is written are the same pass.
class Rater {
  public:
    Rater(Engine& engine, const std::string& model, const Windows& windows, Sinks& sinks, StandardOutput& out)
        : engine_(engine), model_(model), windows_(windows), sinks_(sinks), out_(out) {}

    Result<void> run() {
        const int64_t total = int64_t(windows_.tokens.size());
        for (int64_t start = 0; start < total; start += windows_.window) {
            const int64_t length = std::min(windows_.window, total - start);
            const bool rated = length == windows_.window || !windows_.second_half;
            if (!rated && !sinks_.npy) break;
            TRY_VOID(run_window(start, length, rated));
            if (windows_.second_half && rated)
                TRY_VOID(out_.write(
                    fmt::format("[{}]{:.4f},", start / windows_.window + 1, estimate_.perplexity())));
        }
        if (windows_.second_half) TRY_VOID(out_.write("\n"));
        return sinks_.commit();
    }
    const Estimate& estimate() const { return estimate_; }

  private:
    // Rated are predictions from row `first` on: row i predicts token i + 1 of the window.
    Result<void> run_window(int64_t start, int64_t length, bool rated) {
        ScoreRequest request;
        request.tokens.assign(windows_.tokens.begin() + start, windows_.tokens.begin() + start + length);
        if (windows_.begin) request.tokens[0] = *windows_.begin;
        const std::vector<TokenId> tokens = request.tokens;
        const int32_t first = windows_.second_half ? int32_t(windows_.window / 2) : 0;
        request.first_logit = sinks_.npy ? 0 : first;
        request.on_logits = [&](int32_t i, std::span<const float> logits) -> Result<void> {
            if (interrupted()) return internal_error("interrupted");
            if (sinks_.npy) TRY_VOID(sinks_.npy->write_row(logits));
            if (!rated || i < first || i + 1 >= int32_t(length)) return {};
            const double nll = negative_log_probability(logits, tokens[size_t(i) + 1]);
            if (!std::isfinite(nll))
                return bad_input("{}: the logits after token {} are not finite: its weights are damaged",
                                 model_, start + i);
            estimate_.add(nll);
            return sinks_.rated(logits, tokens[size_t(i) + 1]);
        };
        return engine_.score(request);
    }

    Engine& engine_;
    const std::string& model_;  // its path
    const Windows& windows_;
    Sinks& sinks_;
    StandardOutput& out_;
    Estimate estimate_;
};

}  // namespace

namespace {

Result<Windows> windows_of(const PerplexityOptions& o, const ModelFacts& facts, const Sinks& sinks) {
    if (sinks.kl_base) return windows_of_base(*sinks.kl_base, facts);
    return o.file ? windows_of_text(o, facts) : windows_of_ids(o, facts);
}

// No file that is written may be one that is read.
Result<void> spare_inputs(const PerplexityOptions& o, const ModelFacts& facts) {
    std::vector<std::string> inputs = facts.files;
    for (const auto& path : {o.file, o.tokens, o.kl_base})
        if (path) inputs.push_back(*path);
    for (const auto& [option, path] :
         {std::pair("--logits-out", &o.logits_out), std::pair("--save-kl-base", &o.save_kl_base)})
        for (const std::string& input : inputs)
            if (*path && same_file(**path, input))
                return usage_error("{} {} is a file of the input ({}), which would be lost", option, **path,
                                   input);
    return {};
}

// Makes the files that are written on the way.
Result<void> open_sinks(const PerplexityOptions& o, const ModelFacts& facts, const Windows& windows,
                        Sinks* sinks) {
    if (o.logits_out) {
        TRY(NpyWriter made,
            NpyWriter::create(*o.logits_out, int64_t(windows.tokens.size()), facts.shape.vocab));
        sinks->npy.emplace(std::move(made));
    }
    if (o.save_kl_base) {
        const std::span<const TokenId> tokens(windows.tokens.data(),
                                              size_t(windows.complete() * windows.window));
        TRY(KlBaseWriter made,
            KlBaseWriter::create(*o.save_kl_base, tokens, windows.window, facts.shape.vocab));
        sinks->kl_writer.emplace(std::move(made));
    }
    return {};
}

}  // namespace

Result<int> run_command(const PerplexityOptions& o, Session& session) {
    TRY(const ModelFacts facts, model_facts(o.model));
    if (o.context && *o.context > facts.shape.context)
        return usage_error("--ctx is {}, but {} was made for a context of at most {} tokens", *o.context,
                           facts.metadata.source(), facts.shape.context);
    TRY_VOID(spare_inputs(o, facts));
    Sinks sinks;
    if (o.kl_base) {
        TRY(KlBase base, KlBase::open(*o.kl_base));
        sinks.kl_base.emplace(std::move(base));
    }
    TRY(const Windows windows, windows_of(o, facts, sinks));
    const Deferred deferred;  // an interrupted run takes its unfinished files away
    TRY_VOID(open_sinks(o, facts, windows, &sinks));
    TRY(const std::unique_ptr<Backend> backend, session.backend(o.backend, o.threads, o.stored));
    EngineOptions options;
    if (backend->info().host_memory) options.chunk = kChunk;
    options.context = int32_t(std::clamp<int64_t>(windows.window, 2, facts.shape.context));
    TRY(const std::unique_ptr<Engine> engine, session.engine(o.model, *backend, options));
    if (windows.second_half)
        log_info("{} windows of {} tokens, the second half of each is rated", windows.complete(),
                 windows.window);
    Rater rater(*engine, o.model, windows, sinks, session.out);
    const Result<void> ran = rater.run();
    if (interrupted()) return kExitInterrupted;
    if (!ran.ok()) return ran.error();
    const Estimate& e = rater.estimate();
    if (e.count > 0)
        TRY_VOID(session.out.write(
            fmt::format("Final estimate: PPL = {:.4f} +/- {:.5f}\n", e.perplexity(), e.error())));
    if (sinks.kl.count() > 0) TRY_VOID(session.out.write("\n" + sinks.kl.report()));
    log_info("{} tokens, {} of them rated, {:.1f} s", windows.tokens.size(), e.count,
             seconds_between(session.started, Clock::now()));
    return 0;
}

}  // namespace sparkinfer
