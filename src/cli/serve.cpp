// serve.cpp — `sparkinfer serve`: listens at once, answers 503 while the model is loaded, serves, and on
// SIGTERM or Ctrl-C lets running requests end. SIGHUP reads the API keys and the TLS
// files again.
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <exception>
#include <thread>

#include "cli/commands.h"
#include "cli/served_model.h"
#include "cli/signals.h"
#include "cli/version.h"
#include "core/log.h"
#include "core/new_file.h"
#include "server/http_server.h"
#include "server/observed_service.h"
#include "server/routes.h"

namespace sparkinfer {

namespace {

using std::chrono::milliseconds;
constexpr auto kTurn = milliseconds(200);  // between two looks at what is no signal

constexpr auto kGraceOfFailed = std::chrono::seconds(5);  // the errors of what ran are on their way

// As many open files as may be had: each connection is one.
void raise_file_limit() {
    rlimit limit{};
    if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 65536);
    ::setrlimit(RLIMIT_NOFILE, &limit);
}

// One line a request, without its text. Requests that merely look at the server are told when they fail.
void log_request(const RequestFacts& facts, LogFormat format) {
    const bool looks = facts.route == "/" || facts.route == "/metrics" ||
                       facts.route.rfind("/health", 0) == 0 || facts.route.rfind("/dashboard", 0) == 0 ||
                       facts.route.rfind("/static/", 0) == 0;
    if (looks && facts.status < 400) return;
    if (looks && facts.status == 503) return;
    if (format == LogFormat::text) return log_line(LogLevel::info, facts_text_line(facts));
    const std::string line = facts_json_line(facts) + "\n";
    [[maybe_unused]] const ssize_t wrote = ::write(STDERR_FILENO, line.data(), line.size());
}

// The server and what it serves. Its parts end in the reverse order.
class Serving {
  public:
    Serving(const ServeOptions& options, Session& session)
        : o_(options), session_(session), metrics_([this] { return figures(); }) {}
    ~Serving() {
        if (server_) server_->stop();
        if (model_) model_->engine->stop();  // the last events are heard through observed_
    }

    Result<int> run() {
        raise_file_limit();
        // What cannot be written is said now, not when there is something to write.
        if (o_.cache_file) TRY_VOID(NewFile::create(*o_.cache_file, 0600));
        TRY_VOID(open());
        std::atomic<bool> loaded = false;
        Result<std::unique_ptr<ServedModel>> model = out_of_resources("not loaded");
        std::exception_ptr thrown;
        std::thread loader([&] {
            try {
                model = ServedModel::open(o_, session_);
            } catch (...) {  // of the main thread's concern
                thrown = std::current_exception();
            }
            loaded = true;
        });
        while (!loaded)
            if (const int signal = signals_.wait(kTurn); signal == SIGINT || signal == SIGTERM) {
                log_info("stopped while the model was loaded");
                ::_exit(0);  // loading cannot be broken off, and nothing is under way
            } else if (signal == SIGHUP) {
                reload();
            }
        loader.join();
        if (thrown) std::rethrow_exception(thrown);
        TRY(model_, std::move(model));
        TRY_VOID(begin());
        const Result<void> served = serve();
        const Result<void> saved = drain(served.ok() ? std::chrono::seconds(o_.grace_s) : kGraceOfFailed);
        if (!served.ok()) return served.error();
        if (!saved.ok()) return saved.error();
        return 0;
    }

  private:
    Result<void> open() {
        HttpConfig config;
        config.connections = size_t(o_.max_connections);
        config.connections_per_address = size_t(o_.max_connections_per_address);
        config.limits.body_bytes = size_t(o_.max_body);
        config.allowed_hosts = o_.allowed_hosts;
        config.cors_origins = o_.cors_origins;
        if (o_.api_key_file) {
            TRY(config.keys, KeyRing::load(*o_.api_key_file));
        }
        if (o_.tls_cert) config.tls = TlsFiles{*o_.tls_cert, *o_.tls_key};
        config.told = [this](const RequestFacts& facts) {
            metrics_.told(facts);
            log_request(facts, o_.log_format);
        };
        TRY(server_, HttpServer::create(std::move(config)));
        server_->set_routes(server_routes(metrics_, [this] { return state(); }));
        std::vector<std::string> hosts = o_.hosts;
        if (hosts.empty() && !o_.unix_path) hosts = {"127.0.0.1"};
        if (o_.unix_path) TRY_VOID(listen({.unix_path = *o_.unix_path}));
        for (const std::string& host : hosts) TRY_VOID(listen({.host = host, .port = uint16_t(o_.port)}));
        server_->every(std::chrono::seconds(1), [this] { metrics_.sample(); });
        for (const std::string& at : reached_) log_info("listening on {}; the model is being loaded", at);
        return {};
    }
    Result<void> listen(const Endpoint& endpoint) {
        TRY(const std::vector<std::string> reached, server_->listen(endpoint));
        reached_.insert(reached_.end(), reached.begin(), reached.end());
        return {};
    }

    // The model is there: its routes join the table.
    Result<void> begin() {
        observed_ = observe(*model_->service, metrics_);
        std::vector<Route> routes = server_routes(metrics_, [this] { return state(); });
        for (Route& route : api_routes(*observed_, {.any_model = o_.any_model}))
            routes.push_back(std::move(route));
        server_->set_routes(std::move(routes));
        shown_ = model_.get();
        server_->set_state(ServerState::ready);
        return session_.out.write(greeting());
    }
    std::string greeting() const {
        const ModelCard& card = model_->service->card();
        std::string text;
        for (const std::string& at : reached_)
            text += fmt::format("serving {} at {} ({} tokens of context, {} slots)\n", card.id, at,
                                card.context, card.slots);
        const std::string& at = reached_.front();
        const bool local = at.rfind("unix:", 0) == 0;
        text += fmt::format(
            "try: curl {}{}/v1/chat/completions{} -H 'Content-Type: application/json' -d "
            "'{{\"messages\":[{{\"role\":\"user\",\"content\":\"Hello!\"}}]}}'\n",
            local ? "--unix-socket " + shell_quoted(at.substr(5)) + " " : "", local ? "http://localhost" : at,
            o_.api_key_file ? " -H 'Authorization: Bearer YOUR_KEY'" : "");
        return text;
    }

    // Until it is told to end, or the device fails: then whoever watches over the process starts a new one.
    Result<void> serve() {
        for (;;) {
            const int signal = signals_.wait(kTurn);
            if (signal == SIGINT || signal == SIGTERM) return {};
            if (signal == SIGHUP) reload();
            if (model_->engine->failed())
                return internal_error("the device failed: {}", model_->engine->failure());
        }
    }

    // Requests under way may end; new ones are told to come again elsewhere.
    Result<void> drain(std::chrono::seconds grace) {
        server_->set_state(ServerState::draining);
        const auto end = Clock::now() + grace;
        if (const size_t left = server_->load().requests; left > 0)
            log_info("shutting down: {} requests are under way and have {} s; a second signal ends them",
                     left, grace.count());
        while (!server_->wait_idle(kTurn / 2) && Clock::now() < end)
            if (const int signal = signals_.wait(milliseconds(0)); signal == SIGINT || signal == SIGTERM)
                ::_exit(128 + signal);
        const size_t cut = server_->load().requests;
        server_->stop();
        if (cut > 0) log_warning("{} requests were cut off", cut);
        if (o_.cache_file && !model_->engine->failed()) TRY_VOID(save_cache(*o_.cache_file));
        log_info("stopped");
        return {};
    }
    Result<void> save_cache(const std::string& path) {
        Result<void> saved = out_of_resources("not saved");
        const auto called = model_->engine->call([&](Engine& engine) { saved = engine.save_cache(path); });
        const Result<void>& result = called.ok() ? saved : called;
        if (!result.ok())
            return Error{result.error().kind,
                         fmt::format("what requests have in common is not kept: {}", result.error().message)};
        log_info("{}: wrote what requests have in common", path);
        return {};
    }

    void reload() {
        if (!o_.api_key_file && !o_.tls_cert)
            return log_info("SIGHUP: there is no --api-key-file or --tls-cert to read again");
        if (o_.api_key_file) reload_keys();
        if (o_.tls_cert) reload_tls();
    }
    void reload_tls() {
        const Result<void> read = server_->reload_tls();
        if (!read.ok()) return log_warning("the certificate stays as it was: {}", read.error().message);
        log_info("{}: read again", *o_.tls_cert);
    }
    void reload_keys() {
        auto keys = KeyRing::load(*o_.api_key_file);
        if (!keys.ok()) return log_warning("the API keys stay as they were: {}", keys.error().message);
        log_info("{}: {} API keys", *o_.api_key_file, keys.value().size());
        server_->set_keys(std::move(keys).value());
    }

    std::string state() const {
        const ServedModel* model = shown_;
        if (model && model->engine->failed()) return "failed";
        switch (server_->state()) {
            case ServerState::loading: return "loading";
            case ServerState::ready: return "ready";
            case ServerState::draining: return "draining";
        }
        return "?";
    }
    ServerFigures figures() const {
        ServerFigures figures;
        figures.version = version_text();
        figures.state = state();
        const HttpServer::Load load = server_->load();
        figures.connections = load.connections;
        figures.http_requests = load.requests;
        figures.refused_connections = load.refused_connections;
        if (const ServedModel* model = shown_) {
            figures.model = model->service->card().id;
            figures.page_bytes = model->page_bytes;
            figures.engine = model->engine->stats();
        }
        return figures;
    }

    const ServeOptions& o_;
    Session& session_;
    Signals signals_;
    Metrics metrics_;
    std::unique_ptr<ServedModel> model_;
    std::unique_ptr<Service> observed_;
    std::atomic<const ServedModel*> shown_ = nullptr;  // to I/O threads, once it is whole
    std::unique_ptr<HttpServer> server_;
    std::vector<std::string> reached_;
};

}  // namespace

Result<int> run_command(const ServeOptions& options, Session& session) {
    return Serving(options, session).run();
}

}  // namespace sparkinfer
