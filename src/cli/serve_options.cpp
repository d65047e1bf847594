// serve_options.cpp — the flags of `sparkinfer serve`.
#include "cli/option_binder.h"
#include "server/net.h"

namespace sparkinfer {

namespace {

constexpr int64_t kMaxSlots = 256;

void bind_addresses(Binder& b, ServeOptions& o) {
    b.texts("--host", "HOST",
            "listen on this address or name (default: 127.0.0.1); may be given several times", o.hosts);
    b.integer("--port", "port (default 8080); 0: any free one", 0, 65535, o.port);
    b.text("--unix", "PATH", "listen on a unix socket, for this user alone; without --host on it alone",
           o.unix_path);
    b.text("--tls-cert", "FILE", "speak TLS with this certificate chain (PEM)", o.tls_cert);
    b.text("--tls-key", "FILE", "its private key (PEM)", o.tls_key);
    b.text("--api-key-file", "FILE",
           "ask for an API key: one a line, or sha256: and its hash; read again on SIGHUP", o.api_key_file);
    b.flag("--insecure", "let everybody in who can reach an address that is not this machine's alone",
           o.insecure);
    b.texts("--allow-host", "NAME",
            "a name this server is asked by, beside addresses and localhost ('*': any); several times",
            o.allowed_hosts);
    b.texts("--cors-origin", "ORIGIN",
            "let web pages of this origin use the server (https://a.example; '*': any); several times",
            o.cors_origins);
}

void bind_model(Binder& b, ServeOptions& o) {
    b.texts("--alias", "NAME", "another name that requests may ask for the model by; several times",
            o.aliases);
    b.flag("--any-model", "take every name of a model for this one", o.any_model);
    b.integer("--ctx", "most tokens of one request, prompt and answer (default: the file's)", 2, kMaxTokens,
              o.context);
    b.integer("--slots", "requests that run at once (default 8 on a CPU, 32 on a GPU)", 1, kMaxSlots,
              o.slots);
    b.integer("--chunk", "most prompt tokens of one step; a multiple of 64 (default: what suits the backend)",
              64, 1 << 16, o.chunk);
    b.bytes("--kv-memory", "memory for keys and values (default: --slots times --ctx, at most what there is)",
            o.kv_memory);
    b.bytes("--checkpoint-memory", "device memory for recurrent states that are kept (default: 8 a slot)",
            o.checkpoint_memory);
    b.bytes("--host-cache",
            "host memory for beginnings of requests that the device has no room for (default: none on a CPU)",
            o.host_cache);
    b.bytes("--replay-memory",
            "host memory for the tokens of answers, which later turns see again (default: 256M)",
            o.replay_memory);
    b.flag("--no-prefix-cache", "compute every prompt from its beginning", o.no_prefix_cache);
    b.text("--cache-file", "FILE",
           "keep the beginnings of requests over a restart: read at the start, written at a clean end",
           o.cache_file);
    b.flag("--deterministic", "the same bits whatever else runs, on every backend; slower on a GPU",
           o.deterministic);
    b.backend(o.backend);
    b.threads(o.threads);
    b.stored(o.stored, kKvDefault);
}

void bind_limits(Binder& b, ServeOptions& o) {
    b.integer("--queue", "requests that wait for a slot before 429 is answered (default 256)", 1, 1 << 16,
              o.queue);
    b.integer("--max-body", "bytes of a request's body (default 33554432)", 1024, 1 << 30, o.max_body);
    b.integer("--max-connections", "open connections (default 8192)", 1, 1 << 20, o.max_connections);
    b.integer("--max-connections-per-address", "of one client's address (default 4096)", 1, 1 << 20,
              o.max_connections_per_address);
    b.integer("--grace", "seconds that running requests have left after SIGTERM or Ctrl-C (default 30)", 0,
              86400, o.grace_s);
    b.value("--log-format", "FORMAT", "text (default) or json: one line a request, without its text",
            [&o](const std::string& name) -> Result<void> {
                if (name != "text" && name != "json")
                    return usage_error("--log-format is '{}', expected text or json", name);
                o.log_format = name == "json" ? LogFormat::json : LogFormat::text;
                return {};
            });
}

}  // namespace

void bind_serve(Binder b, ServeOptions& o) {
    b.model(o.model);
    bind_addresses(b, o);
    bind_model(b, o);
    bind_limits(b, o);
}

Result<void> check_serve(const ServeOptions& o) {
    if (o.tls_cert.has_value() != o.tls_key.has_value())
        return usage_error("--tls-cert and --tls-key belong together, only {} is given",
                           o.tls_cert ? "--tls-cert" : "--tls-key");
    if (o.unix_path && o.unix_path->empty())
        return usage_error("--unix is '', expected the path of a socket");
    for (const std::string& host : o.hosts)
        if (host.empty()) return usage_error("--host is '', expected an address or a name");
    if (o.chunk && *o.chunk % 64 != 0)
        return usage_error("--chunk is '{}', expected a multiple of 64", *o.chunk);
    if (o.cache_file && o.no_prefix_cache)
        return usage_error("--cache-file keeps what --no-prefix-cache does without, expected one of them");
    if (!o.api_key_file && !o.insecure)
        for (const std::string& host : o.hosts)
            if (!is_loopback(host))
                return usage_error(
                    "--host is '{}', which other machines reach: give --api-key-file FILE, or --insecure to "
                    "let everybody in",
                    host);
    return {};
}

}  // namespace sparkinfer
