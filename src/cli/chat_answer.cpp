#include "cli/chat_answer.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>

#include "cli/progress.h"
#include "cli/terminal.h"
#include "cli/word_wrap.h"
#include "server/choice.h"

namespace sparkinfer {

namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kLook = std::chrono::milliseconds(50);  // for Ctrl-C
constexpr double kLongPrompt = 0.7;  // seconds: from here on a terminal shows how far a prompt is read

double since(Clock::time_point from) { return std::chrono::duration<double>(Clock::now() - from).count(); }

// Events on their way from the service's thread, which must not wait for a terminal.
class Inbox {
  public:
    void put(const AnswerEvent& event) {
        {
            const std::lock_guard lock(mutex_);
            events_.push_back(event);
        }
        arrived_.notify_one();
    }
    // False: none came in time.
    bool take(AnswerEvent& event) {
        std::unique_lock lock(mutex_);
        if (!arrived_.wait_for(lock, kLook, [&] { return !events_.empty(); })) return false;
        event = std::move(events_.front());
        events_.pop_front();
        return true;
    }

  private:
    std::mutex mutex_;
    std::condition_variable arrived_;
    std::deque<AnswerEvent> events_;
};

// The text of one answer, reasoning set off from the rest.
class Writer {
  public:
    explicit Writer(const AnswerScreen& screen) : screen_(screen) {}

    Result<void> reasoning(const std::string& text) {
        if (!screen_.terminal) return {};
        std::string shown = reasoning_ ? "" : screen_.colour ? "\x1b[2mThinking…\n" : "Thinking…\n";
        reasoning_ = true;
        TRY_VOID(write(shown));
        return write(wrapped(text));
    }
    Result<void> content(const std::string& text) {
        TRY_VOID(end_reasoning());
        return write(screen_.terminal ? wrapped(text) : text);
    }
    // Whatever was written ends with a line.
    Result<void> end() {
        TRY_VOID(end_reasoning());
        return wrote_ && !line_begins_ ? write("\n") : Result<void>{};
    }

  private:
    Result<void> end_reasoning() {
        if (!reasoning_) return {};
        reasoning_ = false;
        std::string last = line_begins_ ? "" : "\n";
        last += screen_.colour ? "…thought.\x1b[0m\n\n" : "…thought.\n\n";
        wrap_.new_line();
        return write(last);
    }
    std::string wrapped(const std::string& text) {
        const std::string safe = terminal_safe(text);
        return screen_.wraps ? wrap_.push(safe, terminal_size(STDOUT_FILENO).columns) : safe;
    }
    Result<void> write(const std::string& text) {
        if (text.empty()) return {};
        wrote_ = true;
        line_begins_ = text.back() == '\n';
        return screen_.out.write(text);
    }

    const AnswerScreen& screen_;
    WordWrap wrap_;
    bool reasoning_ = false, wrote_ = false, line_begins_ = true;
};

Error error_of(const ApiError& error) {
    return {error.status < 500 ? ErrorKind::bad_input : ErrorKind::internal, error.message};
}

// How far the prompt is read, on a terminal while that takes long.
class Reading {
  public:
    Reading(const AnswerScreen& screen, size_t prompt)
        : screen_(screen), prompt_(int64_t(prompt)), rows_(screen.rows_read ? screen.rows_read() : 0) {}
    void show(int64_t cached) {
        if (screen_.rows_read) bar_.show(std::min(prompt_, cached + screen_.rows_read() - rows_), prompt_);
    }
    void end() { bar_.erase(); }

  private:
    const AnswerScreen& screen_;
    ProgressBar bar_{STDERR_FILENO, kLongPrompt, "reading", ProgressUnit::tokens};
    int64_t prompt_, rows_;
};

// Takes events until the answer has ended.
Result<void> listen(Inbox& inbox, RunningAnswer& running, Reading& reading, const AnswerScreen& screen,
                    SpokenAnswer& answer) {
    const Clock::time_point asked = Clock::now();
    std::optional<Clock::time_point> first;
    Writer writer(screen);
    bool cancelled = false;
    for (AnswerEvent event{AnswerEvent::Kind::started}; event.kind != AnswerEvent::Kind::finished;) {
        if (!cancelled && (interrupted() || screen.out.closed())) {
            cancelled = true;
            running.cancel();
        }
        if (!inbox.take(event)) {
            if (!first) reading.show(answer.usage.cached_tokens);
            continue;
        }
        if (event.kind == AnswerEvent::Kind::failed) return error_of(event.error);
        const bool text =
            event.kind == AnswerEvent::Kind::reasoning || event.kind == AnswerEvent::Kind::content;
        if (event.kind == AnswerEvent::Kind::started) answer.usage = event.usage;
        if (event.kind != AnswerEvent::Kind::started) reading.end();
        if (text && !first) {
            first = Clock::now();
            answer.first_s = since(asked);
        }
        if (event.kind == AnswerEvent::Kind::reasoning) {
            answer.reasoning += event.text;
            TRY_VOID(writer.reasoning(event.text));
        } else if (event.kind == AnswerEvent::Kind::content) {
            answer.content += event.text;
            TRY_VOID(writer.content(event.text));
        } else if (event.kind == AnswerEvent::Kind::finished) {
            answer.finish = event.finish;
            answer.stop = event.stop;
            answer.usage = event.usage;
        }
    }
    if (first) answer.generation_s = since(*first);
    return writer.end();
}

}  // namespace

Result<SpokenAnswer> speak(Service& service, std::shared_ptr<Prepared> prepared, const AnswerScreen& screen) {
    const Deferred deferred;
    SpokenAnswer answer;
    answer.id = random_id("answer_");
    const auto inbox = std::make_shared<Inbox>();
    Reading reading(screen, prepared->prompt.size());
    auto started = service.start(std::move(prepared), answer.id,
                                 [inbox](const AnswerEvent& event) { inbox->put(event); });
    if (!started.ok()) return error_of(started.error());
    const Result<void> heard = listen(*inbox, *started.value(), reading, screen, answer);
    if (!heard.ok()) {
        started.value()->cancel();
        return heard.error();
    }
    if (!terminated()) clear_interrupt();
    return answer;
}

}  // namespace sparkinfer
