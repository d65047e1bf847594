#include "cli/chat.h"

#include <unistd.h>

#include <algorithm>

#include "cli/chat_settings.h"
#include "cli/serve_sizes.h"
#include "cli/terminal.h"
#include "cli/word_wrap.h"
#include "core/env.h"
#include "core/log.h"

namespace sparkinfer {

namespace {

// Rows of a prompt in one step on a CPU: few enough that Ctrl-C is heard soon.
constexpr int32_t kChunk = 128;

constexpr double kUsable = 0.9;  // of the memory at hand, as a server has it

// One conversation at a time, whose beginning is kept: the sizes of a server with one slot. Without --ctx,
// the model's own context, cut to what fits.
Result<EngineOptions> chat_sizes(ServeOptions o, const ServeMachine& m) {
    if (m.on_host) o.chunk = kChunk;
    if (!o.context) {
        const auto room = int64_t(kUsable * double(std::max<int64_t>(m.memory - m.weights, 0)));
        const int64_t fits = room / std::max<int64_t>(m.bytes_per_token, 1) - int64_t(2 * kPageTokens);
        o.context = std::min<int64_t>(m.trained_context, std::max<int64_t>(fits, 1));
        if (*o.context < m.trained_context)
            log_warning("the context is cut to the {} tokens that fit into memory, of the model's {}",
                        *o.context, m.trained_context);
    }
    return serve_sizes(o, m);
}

std::string what_can_be_done(const ModelCard& card) {
    std::string text =
        "  /forget      drop the oldest exchanges, until half of the context is free; the rest is read "
        "again\n"
        "  /undo        drop the newest exchange\n"
        "  /save FILE   keep the conversation; /clear begins a new one";
    if (card.context < card.trained_context)
        text += fmt::format(
            "\n  --ctx N      starts a chat with more, up to {} tokens; /load takes up what was saved",
            card.trained_context);
    return text;
}

}  // namespace

Chat::Chat(ServedModel& model, const ChatOptions& options, Session& session)
    : service_(*model.service),
      session_(session),
      input_(!options.no_history),
      screen_{session.out, ::isatty(STDOUT_FILENO) != 0, ::isatty(STDOUT_FILENO) && !env_dumb_terminal(),
              ::isatty(STDOUT_FILENO) && !env_no_color(),
              [&model] { return model.engine->stats().prompt_rows; }},
      params_(answer_params(options)) {
    conversation_.system = options.system.value_or("");
    if (options.thinking)
        if (auto thinking = parse_thinking(*options.thinking); thinking.ok()) thinking_ = *thinking;
}

void Chat::take_up(Conversation conversation) {
    if (!conversation_.system.empty()) conversation.system = conversation_.system;
    conversation_ = std::move(conversation);
}

ChatRequest Chat::request() const {
    ChatRequest request;
    request.messages = conversation_.all();
    request.params = params_;
    request.thinking = thinking_;
    return request;
}

Result<int64_t> Chat::tokens() const {
    ChatRequest asked = request();
    if (asked.messages.empty()) return int64_t(0);
    asked.add_generation_prompt = false;
    asked.params = {};
    auto prepared = service_.prepare(asked);
    if (prepared.ok()) return int64_t(prepared.value()->prompt.size());
    if (prepared.error().code == "context_length_exceeded") return prepared.error().prompt_tokens;
    return bad_input("{}", prepared.error().message);
}

void Chat::note(const std::string& text) const {
    if (input_.edits()) {
        const std::string lines = WordWrap().push(terminal_safe(text), terminal_size(STDERR_FILENO).columns);
        const std::string shown = screen_.colour ? "\x1b[2m" + lines + "\x1b[0m\n" : lines + "\n";
        [[maybe_unused]] const ssize_t wrote = ::write(STDERR_FILENO, shown.data(), shown.size());
        return;
    }
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        log_line(LogLevel::info, std::string_view(text).substr(at, end - at));
        at = end + 1;
    }
}

Result<int> Chat::run() {
    const ModelCard& card = service_.card();
    if (input_.edits())
        note(fmt::format("{} · context of {} tokens · /help lists commands, Ctrl-D quits", card.id,
                         card.context));
    const Deferred deferred;  // a signal between two answers is one at the prompt
    std::optional<TerminalMode> mode;
    if (input_.edits()) mode.emplace(TerminalMode::Kind::answer);
    while (!quit_) {
        if (interrupted() && !terminated() && input_.edits()) {
            clear_interrupt();
            stopped_ = true;
        }
        TRY(const std::optional<std::string> text, input_.next(std::exchange(stopped_, false)));
        if (!text) break;
        const Result<void> taken = take(*text);
        if (!taken.ok() && (!input_.edits() || taken.error().kind == ErrorKind::internal))
            return taken.error();
        if (!taken.ok()) log_line(LogLevel::error, taken.error().message);
        if (session_.out.closed()) break;
        if (terminated() || (stopped_ && !input_.edits())) return kExitInterrupted;
    }
    return input_.interrupted() ? kExitInterrupted : 0;
}

Result<void> Chat::take(const std::string& text) {
    if (text.find_first_not_of(" \t\n") == std::string::npos) return {};
    if (text.starts_with("//")) return say(text.substr(1));
    if (text.starts_with('/')) return command(text);
    return say(text);
}

Result<void> Chat::say(const std::string& message) {
    ChatRequest asked = request();
    asked.messages.push_back({Role::user, message});
    auto prepared = service_.prepare(asked);
    if (!prepared.ok()) {
        if (prepared.error().code == "context_length_exceeded")
            return context_is_full(prepared.error().prompt_tokens);
        return bad_input("{}", prepared.error().message);
    }
    for (const std::string& notice : prepared.value()->notices) note(notice);
    TRY(counted_, speak(service_, std::move(prepared).value(), screen_));
    keep(message, counted_);
    if (screen_.terminal) TRY_VOID(session_.out.write("\n"));
    return {};
}

// Puts an exchange behind the conversation, and says what is unusual about how the answer ended.
void Chat::keep(const std::string& message, const SpokenAnswer& answer) {
    stopped_ = answer.finish == AnswerFinish::cancelled;
    if (stopped_ && answer.content.empty()) {
        note("stopped before an answer; the message is taken back");
        return;
    }
    ChatMessage reply{Role::assistant, answer.content};
    reply.reasoning = answer.reasoning;
    reply.id = answer.id;
    conversation_.messages.push_back({Role::user, message});
    conversation_.messages.push_back(std::move(reply));
    if (stopped_) note("stopped; what there is of the answer stays");
    if (answer.finish != AnswerFinish::length) return;
    const int64_t used = answer.usage.prompt_tokens + answer.usage.completion_tokens;
    if (used < service_.card().context)
        note(fmt::format("the answer ends at max_tokens, {} (/set max_tokens)",
                         answer.usage.completion_tokens));
    else
        note(fmt::format("the answer ends because the context of {} tokens is full\n{}",
                         service_.card().context, what_can_be_done(service_.card())));
}

Result<void> Chat::context_is_full(int64_t needed) {
    const ModelCard& card = service_.card();
    std::string text = fmt::format(
        "the context of {} tokens is full: with this message the conversation has {}", card.context, needed);
    if (!input_.edits()) return out_of_resources("{}", text);
    note(text + "; the message is not sent, the up arrow brings it back\n" + what_can_be_done(card));
    return {};
}

Result<int> run_command(const ChatOptions& o, Session& session) {
    std::optional<Conversation> loaded;
    if (o.load) {
        TRY(loaded, load_conversation(*o.load));
    }
    ServeOptions serve;
    serve.model = o.model;
    serve.backend = o.backend;
    serve.threads = o.threads;
    serve.stored = o.stored;
    serve.context = o.context;
    serve.slots = 1;
    serve.host_cache = 0;
    TRY(const std::unique_ptr<ServedModel> model, ServedModel::open(serve, session, chat_sizes));
    if (model->service->card().chat_template.empty())
        return bad_input("{}: the model has no chat template; `sparkinfer run --raw` continues a text",
                         o.model);
    Chat chat(*model, o, session);
    if (loaded) chat.take_up(std::move(*loaded));
    return chat.run();
}

}  // namespace sparkinfer
