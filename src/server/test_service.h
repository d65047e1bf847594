// test_service.h — a service that plays scripted answers, and a responder that keeps what it is told, for the
// tests of handlers.
#pragma once
#include <deque>
#include <mutex>
#include <optional>

#include "server/http.h"
#include "server/service.h"
#include "text/text_test_vocabulary.h"
#include "text/tokenizer.h"

namespace sparkinfer {

// What a client saw of one answer.
class KeptResponder : public Responder {
  public:
    int status = 0;  // 0: nothing yet
    std::string type, body, keep_alive;
    Headers headers;
    bool streamed = false, finished = false;
    int misuse = 0;  // calls that the contract forbids

    void send(int code, std::string_view content_type, std::string text, Headers more) override {
        misuse += status != 0;
        status = code;
        type = content_type;
        body = std::move(text);
        headers = std::move(more);
        finished = true;
    }
    void start_stream(std::string_view content_type, std::string comment) override {
        misuse += status != 0;
        status = 200;
        type = content_type;
        keep_alive = std::move(comment);
        streamed = true;
    }
    void write(std::string bytes) override {
        misuse += !streamed || finished;
        body += bytes;
    }
    void finish() override {
        misuse += !streamed || finished;
        finished = true;
    }
    void on_gone(std::function<void()> hear) override { hear_ = std::move(hear); }
    void leave() {
        if (hear_) hear_();
    }
    std::string header(std::string_view name) const {
        for (const auto& [key, value] : headers)
            if (key == name) return value;
        return "";
    }

  private:
    std::function<void()> hear_;
};

// Plays the scripts in order, one a start(): at once, or by and by when `later` is set.
class FakeService : public Service {
  public:
    ModelCard model;
    std::deque<std::vector<AnswerEvent>> scripts;
    bool later = false;
    std::optional<ApiError> no_prepare, no_start;
    size_t starts_allowed = SIZE_MAX;  // then no_start

    std::vector<ChatRequest> chats;
    std::vector<TextRequest> texts;
    std::vector<std::string> answer_ids;
    std::vector<std::string> notices;
    int cancelled = 0;

    FakeService() : tokenizer_(Tokenizer::from_metadata(TestVocabulary().metadata()).value()) {
        model = {"tiny", {"gpt-4o", "claude"}, 1700000000, 4096, 8192, tokenizer_.size(), 4, "{{ x }}", true,
                 true};
    }
    const ModelCard& card() const override { return model; }
    const Tokenizer& tokenizer() const override { return tokenizer_; }

    ApiResult<std::shared_ptr<Prepared>> prepare(const ChatRequest& request) override {
        chats.push_back(request);
        return prepared(request.messages.back().content);
    }
    ApiResult<std::shared_ptr<Prepared>> prepare(const TextRequest& request) override {
        texts.push_back(request);
        const auto* text = std::get_if<std::string>(&request.prompt);
        return prepared(text ? *text : "");
    }
    ApiResult<std::string> render(const ChatRequest& request) override {
        if (no_prepare) return *no_prepare;
        chats.push_back(request);
        return "<prompt of " + std::to_string(request.messages.size()) + ">";
    }
    ApiResult<std::shared_ptr<RunningAnswer>> start(std::shared_ptr<Prepared>, std::string id,
                                                    AnswerSink sink) override {
        if (answer_ids.size() >= starts_allowed && no_start) return *no_start;
        answer_ids.push_back(std::move(id));
        auto running = std::make_shared<Running>();
        running->service = this;
        running->sink = std::move(sink);
        if (!scripts.empty()) {
            running->script = std::move(scripts.front());
            scripts.pop_front();
        }
        running_.push_back(running);
        if (!later) play();
        return std::shared_ptr<RunningAnswer>(running);
    }
    // Plays at most `events` further events of all that runs.
    void play(size_t events = SIZE_MAX) {
        for (size_t i = 0; i < running_.size(); ++i) {
            const std::shared_ptr<Running> running = running_[i];
            for (; events > 0 && running->next < running->script.size() && running->sink; --events)
                running->sink(running->script[running->next++]);
            if (running->next == running->script.size()) running->sink = nullptr;
        }
    }
    // Answers whose sink is still held: a leak when all is over.
    size_t held() const {
        size_t n = 0;
        for (const auto& running : running_) n += running->sink != nullptr;
        return n;
    }

  private:
    struct Running : RunningAnswer {
        FakeService* service = nullptr;
        AnswerSink sink;
        std::vector<AnswerEvent> script;
        size_t next = 0;
        void cancel() override {
            service->cancelled++;
            if (!sink) return;
            AnswerEvent event{AnswerEvent::Kind::finished};
            event.finish = AnswerFinish::cancelled;
            const AnswerSink last = std::move(sink);
            sink = nullptr;
            last(event);  // at once, on the caller's thread: the hardest case
        }
    };

    ApiResult<std::shared_ptr<Prepared>> prepared(std::string_view text) {
        if (no_prepare) return *no_prepare;
        auto p = std::make_shared<Prepared>();
        p->prompt = tokenizer_.encode(text, Tokenizer::Specials::none, false).value();
        p->notices = notices;
        return p;
    }

    Tokenizer tokenizer_;
    std::vector<std::shared_ptr<Running>> running_;
};

// A POST as the HTTP plane hands it on.
inline HttpRequest test_post(const std::string& path, const std::string& body) {
    HttpRequest request;
    request.method = "POST";
    request.path = path;
    request.body = body;
    request.id = "req-1";
    return request;
}

}  // namespace sparkinfer
