#include "cli/answer.h"

#include <unistd.h>

#include "cli/machine.h"
#include "cli/progress.h"

namespace sparkinfer {

namespace {

constexpr double kLongPrompt = 0.7;  // seconds: from here on a terminal shows how far a prompt is read

// Collects the events of one request.
class Collector {
  public:
    Collector(const Tokenizer& tokenizer, AnswerPlan& plan, Session& session)
        : decoder_(tokenizer), matcher_(std::move(plan.stop)), session_(session), stream_(plan.stream) {
        answer_.has_logprobs = plan.request.logprobs >= 0;
        answer_.load_s = seconds_between(session.started, submitted_);
    }

    // False: the answer is over, though the engine does not know it yet (a stop string, a reader gone,
    // Ctrl-C).
    Result<bool> take(Event& event) {
        if (answer_.finish != FinishReason::none) return false;
        if (event.token) {
            count_token();
            answer_.tokens.push_back({*event.token, std::move(event.logprobs).value_or(TokenLogprobs{})});
            TRY_VOID(emit(matcher_.push(decoder_.push(*event.token))));
        }
        if (event.finish == FinishReason::error) return internal_error("{}", event.error);
        if (matcher_.matched())
            answer_.finish = FinishReason::stop;
        else if (session_.out.closed())
            answer_.finish = FinishReason::cancelled;
        else if (event.finish != FinishReason::none) {
            if (!event.token && event.finish == FinishReason::stop) count_token();  // the end token
            answer_.finish = event.finish;
        }
        return answer_.finish == FinishReason::none;
    }

    void cancel() {
        if (answer_.finish == FinishReason::none) answer_.finish = FinishReason::cancelled;
    }

    Result<Answer> finish() {
        if (!matcher_.matched()) {
            TRY_VOID(emit(matcher_.push(decoder_.finish())));
            TRY_VOID(emit(matcher_.finish()));
        }
        if (first_token_) answer_.gen_s = seconds_between(*first_token_, last_token_);
        return std::move(answer_);
    }

  private:
    void count_token() {
        last_token_ = Clock::now();
        if (first_token_) {
            ++answer_.decode_steps;
            return;
        }
        first_token_ = last_token_;
        answer_.prompt_s = seconds_between(submitted_, last_token_);
        answer_.first_token_s = seconds_between(session_.started, last_token_);
    }
    Result<void> emit(const std::string& text) {
        if (stream_) TRY_VOID(session_.out.write(text));
        answer_.text += text;
        return {};
    }

    Decoder decoder_;
    StopMatcher matcher_;
    Session& session_;
    bool stream_;
    Clock::time_point submitted_ = Clock::now(), last_token_ = submitted_;
    std::optional<Clock::time_point> first_token_;
    Answer answer_;
};

// {id, token, bytes, logprob}; a token that is no text of its own shows U+FFFD, its bytes are exact.
JsonObject token_json(TokenId id, float logprob, const Tokenizer& tokenizer) {
    const std::string_view piece = tokenizer.piece(id);
    JsonArray bytes;
    for (const char c : piece) bytes.emplace_back(int64_t(uint8_t(c)));
    std::string text;
    Utf8Buffer characters;
    characters.push(piece, text);
    characters.finish(text);
    JsonObject token;
    token["id"] = raw(id);
    token["token"] = text;
    token["bytes"] = std::move(bytes);
    token["logprob"] = double(logprob);
    return token;
}

double rate(double count, double seconds) { return seconds > 0 ? count / seconds : 0; }

}  // namespace

Result<Answer> answer_prompt(Engine& engine, const Tokenizer& tokenizer, AnswerPlan plan, Session& session) {
    const Deferred deferred;  // from here on there is something to end cleanly
    Collector collector(tokenizer, plan, session);
    TRY(const RequestId id, engine.submit(std::move(plan.request)));
    bool running = true;
    ProgressBar reading(STDERR_FILENO, kLongPrompt, "reading", ProgressUnit::tokens);
    while (!engine.idle()) {
        if (running && interrupted()) {
            collector.cancel();
            running = false;
            engine.cancel(id);
        }
        TRY(std::vector<Event> events, engine.step());
        const PrefillProgress progress = engine.prefill_progress(id);
        if (progress.done < progress.total)
            reading.show(progress.done, progress.total);
        else
            reading.erase();
        for (Event& event : events) {
            if (!running) break;
            TRY(running, collector.take(event));
            if (!running && event.finish == FinishReason::none) engine.cancel(id);
        }
    }
    return collector.finish();
}

Json answer_json(const Answer& answer, const std::vector<TokenId>& prompt, const Tokenizer& tokenizer) {
    JsonArray ids, prompt_ids, logprobs;
    for (const TokenId id : prompt) prompt_ids.emplace_back(raw(id));
    for (const AnswerToken& token : answer.tokens) {
        ids.emplace_back(raw(token.id));
        if (!answer.has_logprobs) continue;
        JsonObject entry = token_json(token.id, token.logprobs.logprob, tokenizer);
        JsonArray top;
        for (const auto& [id, logprob] : token.logprobs.top)
            top.emplace_back(token_json(id, logprob, tokenizer));
        entry["top"] = std::move(top);
        logprobs.emplace_back(std::move(entry));
    }
    JsonObject timings;
    timings["load_s"] = answer.load_s;
    timings["prompt_n"] = int64_t(prompt.size());
    timings["prompt_s"] = answer.prompt_s;
    timings["gen_n"] = int64_t(answer.tokens.size());
    timings["gen_s"] = answer.gen_s;
    timings["first_token_s"] = answer.first_token_s;
    timings["peak_rss_bytes"] = peak_resident_bytes();
    JsonObject object;
    object["text"] = answer.text;
    object["token_ids"] = std::move(ids);
    object["prompt_token_ids"] = std::move(prompt_ids);
    object["finish_reason"] = finish_reason_name(answer.finish);
    object["logprobs"] = std::move(logprobs);
    object["timings"] = std::move(timings);
    return object;
}

std::string answer_figures(const Answer& answer, size_t prompt_tokens) {
    return fmt::format(
        "load {:.2f} s · prompt {} tokens, {:.1f} tok/s · generated {} tokens, {:.1f} tok/s · peak memory "
        "{:.0f} MB",
        answer.load_s, prompt_tokens, rate(double(prompt_tokens), answer.prompt_s), answer.tokens.size(),
        rate(answer.decode_steps, answer.gen_s), double(peak_resident_bytes()) * 1e-6);
}

}  // namespace sparkinfer
