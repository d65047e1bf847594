#include "server/http_server.h"

#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <map>
#include <mutex>

#include "core/log.h"
#include "server/worker_pool.h"

namespace sparkinfer {

namespace {

std::string machine_name() {
    char name[256] = {};
    return ::gethostname(name, sizeof name - 1) == 0 ? name : "";
}

class Server final : public HttpServer, public HttpHost {
  public:
    Server(HttpConfig config, std::shared_ptr<Net> net)
        : config_(std::move(config)), net_(std::move(net)), workers_(config_.workers, config_.queue) {
        auto rules = std::make_shared<GateRules>();
        rules->table = std::make_shared<const RouteTable>(std::vector<Route>{});
        rules->keys = std::move(config_.keys);
        rules->allowed_hosts = config_.allowed_hosts;
        rules->cors_origins = config_.cors_origins;
        rules->machine_name = machine_name();
        rules->state = ServerState::loading;
        rules_ = std::move(rules);
    }
    ~Server() override { stop(); }

    Result<std::vector<std::string>> listen(const Endpoint& endpoint) override {
        return net_->listen(endpoint,
                            [this](std::unique_ptr<ByteStream> stream) { welcome(std::move(stream)); });
    }

    void set_routes(std::vector<Route> routes) override {
        change(
            [&](GateRules& rules) { rules.table = std::make_shared<const RouteTable>(std::move(routes)); });
    }
    void set_keys(KeyRing keys) override {
        change([&](GateRules& rules) {
            if (rules.keys) keys.keep_labels(*rules.keys);
            rules.keys = std::move(keys);
        });
    }
    Result<void> reload_tls() override { return net_->reload_tls(); }
    void set_state(ServerState state) override {
        change([&](GateRules& rules) { rules.state = state; });
        if (state == ServerState::draining) for_each([](HttpConnection& c) { c.finish(); });
    }
    ServerState state() const override { return rules()->state; }

    bool wait_idle(std::chrono::milliseconds most) override {
        std::unique_lock lock(mutex_);
        return idle_.wait_for(lock, most, [this] { return requests_ == 0; });
    }
    void stop() override {
        if (std::exchange(stopped_, true)) return;
        net_->stop_listening();
        workers_.stop();
        // One may be accepted still: it is cut by welcome().
        {
            const std::lock_guard lock(mutex_);
            closing_ = true;
        }
        for_each([](HttpConnection& c) { c.cut(); });
        net_->stop();
    }
    Load load() const override {
        const std::lock_guard lock(mutex_);
        return {connections_.size(), requests_, refused_};
    }

    // --- HttpHost ---

    const HttpLimits& limits() const override { return config_.limits; }
    std::shared_ptr<const GateRules> rules() const override {
        const std::lock_guard lock(rules_mutex_);
        return rules_;
    }
    bool dispatch(Job job) override {
        return workers_.submit([job = std::make_shared<Job>(std::move(job))] {
            const RequestTrace::Scope scope(std::move(job->trace));
            try {
                job->handler(job->request, job->responder);
            } catch (const std::exception& e) {  // of a library; the responder, dropped, answers 500
                log_error("request {}: {}", job->request.id, e.what());
            }
        });
    }
    bool take_bytes(size_t bytes) override {
        if (body_bytes_.fetch_add(bytes) + bytes <= config_.bodies_bytes) return true;
        body_bytes_.fetch_sub(bytes);
        return false;
    }
    void give_back_bytes(size_t bytes) override { body_bytes_.fetch_sub(bytes); }
    std::shared_ptr<RequestTrace> began() override {
        const std::lock_guard lock(mutex_);
        ++requests_;
        auto trace = std::make_shared<RequestTrace>(config_.told);
        const auto now = std::chrono::system_clock::now().time_since_epoch();
        trace->note([&](RequestFacts& facts) { facts.arrived = std::chrono::duration<double>(now).count(); });
        return trace;
    }
    void ended() override {
        const std::lock_guard lock(mutex_);
        if (--requests_ == 0) idle_.notify_all();
    }
    void every(std::chrono::milliseconds interval, std::function<void()> work) override {
        net_->every(interval, std::move(work));
    }

  private:
    template <class Change>
    void change(Change change) {
        const std::lock_guard lock(rules_mutex_);
        auto rules = std::make_shared<GateRules>(*rules_);
        change(*rules);
        rules_ = std::move(rules);
    }
    template <class Call>
    void for_each(Call call) {
        std::vector<std::shared_ptr<HttpConnection>> all;
        {
            const std::lock_guard lock(mutex_);
            for (const auto& [id, connection] : connections_) all.push_back(connection);
        }
        for (const auto& connection : all) call(*connection);
    }

    void welcome(std::unique_ptr<ByteStream> stream) {
        const std::lock_guard lock(mutex_);
        const std::string peer = stream->peer();
        size_t& of_peer = of_peer_[peer];
        const bool many = connections_.size() >= config_.connections ||
                          (!peer.empty() && of_peer >= config_.connections_per_address);
        if (many || closing_) {
            if (of_peer == 0) of_peer_.erase(peer);
            ++refused_;
            stream->close();
            return;
        }
        ++of_peer;
        const uint64_t id = ++last_id_;
        connections_[id] = HttpConnection::start(std::move(stream), *this, [this, id, peer] {
            const std::lock_guard closed_lock(mutex_);
            connections_.erase(id);
            if (--of_peer_[peer] == 0) of_peer_.erase(peer);
        });
    }

    HttpConfig config_;
    mutable std::mutex rules_mutex_;
    std::shared_ptr<const GateRules> rules_;
    std::atomic<size_t> body_bytes_ = 0;

    mutable std::mutex mutex_;
    std::condition_variable idle_;
    std::map<uint64_t, std::shared_ptr<HttpConnection>> connections_;
    std::map<std::string, size_t> of_peer_;
    uint64_t last_id_ = 0, refused_ = 0;
    size_t requests_ = 0;
    bool closing_ = false, stopped_ = false;

    std::shared_ptr<Net> net_;
    WorkerPool workers_;
};

}  // namespace

Result<std::unique_ptr<HttpServer>> HttpServer::create(HttpConfig config) {
    TRY(std::shared_ptr<Net> net, Net::create(config.io_threads, config.tls));
    return std::unique_ptr<HttpServer>(std::make_unique<Server>(std::move(config), std::move(net)));
}

}  // namespace sparkinfer
