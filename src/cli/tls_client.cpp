#include "cli/tls_client.h"

#include <arpa/inet.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>
#include <unistd.h>

#include <cerrno>
#include <new>
#include <system_error>

namespace sparkinfer {

namespace {

constexpr const char* kTrustFiles[] = {
    "/etc/ssl/certs/ca-certificates.crt",                 // Debian, Ubuntu, Arch
    "/etc/pki/ca-trust/extracted/pem/tls-ca-bundle.pem",  // Fedora, RHEL
    "/etc/pki/tls/certs/ca-bundle.crt",                   // older ones of them
    "/etc/ssl/ca-bundle.pem",                             // openSUSE
    "/etc/ssl/cert.pem",                                  // Alpine
};

bool is_address(const std::string& host) {
    char bytes[sizeof(in6_addr)];
    return ::inet_pton(AF_INET, host.c_str(), bytes) == 1 || ::inet_pton(AF_INET6, host.c_str(), bytes) == 1;
}

// The library's own words for what went wrong last.
std::string last_reason() {
    const unsigned long code = ::ERR_peek_last_error();
    const char* reason = code == 0 ? nullptr : ::ERR_reason_error_string(code);
    return reason ? reason : "unknown trouble";
}

}  // namespace

std::span<const char* const> system_trust_files() { return kTrustFiles; }

Result<TlsTrust> TlsTrust::open(const std::optional<std::string>& file, std::span<const char* const> places) {
    // Without the library's own configuration file: an environment variable names it.
    ::OPENSSL_init_ssl(OPENSSL_INIT_NO_LOAD_CONFIG, nullptr);
    std::string path = file.value_or("");
    for (const char* place : places)
        if (path.empty() && ::access(place, R_OK) == 0) path = place;
    if (path.empty())
        return bad_input(
            "https: this system's certificates of authorities are not found ({} and {} other places); "
            "install "
            "the package ca-certificates, or name a PEM file with --tls-ca",
            places.empty() ? "none" : places.front(), places.empty() ? 0 : places.size() - 1);
    std::shared_ptr<SSL_CTX> context(::SSL_CTX_new(::TLS_client_method()), ::SSL_CTX_free);
    if (!context) throw std::bad_alloc();
    ::SSL_CTX_set_min_proto_version(context.get(), TLS1_2_VERSION);
    ::SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    ::ERR_clear_error();
    if (::SSL_CTX_load_verify_file(context.get(), path.c_str()) != 1) {
        if (::access(path.c_str(), R_OK) != 0)
            return bad_input("{}: cannot open the file: {}", path, std::generic_category().message(errno));
        return bad_input("{}: no certificate in PEM form can be read: {}", path, last_reason());
    }
    return TlsTrust(std::move(context));
}

TlsConnection::TlsConnection(const TlsTrust& trust, int socket, const std::string& host)
    : ssl_(::SSL_new(trust.context_.get()), ::SSL_free) {
    if (!ssl_) throw std::bad_alloc();
    bool set = ::SSL_set_fd(ssl_.get(), socket) == 1;
    if (is_address(host))
        set = set && ::X509_VERIFY_PARAM_set1_ip_asc(::SSL_get0_param(ssl_.get()), host.c_str()) == 1;
    else
        set = set && ::SSL_set1_host(ssl_.get(), host.c_str()) == 1 &&
              ::SSL_set_tlsext_host_name(ssl_.get(), host.c_str()) == 1;
    if (!set) throw std::bad_alloc();
    ::SSL_set_mode(ssl_.get(), SSL_MODE_ENABLE_PARTIAL_WRITE | SSL_MODE_ACCEPT_MOVING_WRITE_BUFFER);
    ::SSL_set_connect_state(ssl_.get());
}

Result<TlsConnection::Step> TlsConnection::step(int result, size_t bytes, const char* what) {
    if (result == 1) return Step{State::done, bytes};
    const int trouble = errno;
    switch (::SSL_get_error(ssl_.get(), result)) {
        case SSL_ERROR_WANT_READ: return Step{State::wants_read};
        case SSL_ERROR_WANT_WRITE: return Step{State::wants_write};
        case SSL_ERROR_ZERO_RETURN: return Step{State::ended};
        case SSL_ERROR_SYSCALL:
            return out_of_resources(
                "cannot {}: {}", what,
                trouble ? std::generic_category().message(trouble) : "the server closed the connection");
        default: break;
    }
    if (const long verified = ::SSL_get_verify_result(ssl_.get()); verified != X509_V_OK)
        return bad_input("the server's certificate is not believed: {}",
                         ::X509_verify_cert_error_string(verified));
    if (ERR_GET_REASON(::ERR_peek_last_error()) == SSL_R_UNEXPECTED_EOF_WHILE_READING)
        return out_of_resources("cannot {}: the server closed the connection", what);
    return out_of_resources("cannot {}: {}", what, last_reason());
}

Result<TlsConnection::Step> TlsConnection::handshake() {
    ::ERR_clear_error();
    return step(::SSL_do_handshake(ssl_.get()), 0, "agree on TLS");
}

Result<TlsConnection::Step> TlsConnection::read(std::span<char> to) {
    ::ERR_clear_error();
    size_t bytes = 0;
    const int result = ::SSL_read_ex(ssl_.get(), to.data(), to.size(), &bytes);
    return step(result, bytes, "receive");
}

Result<TlsConnection::Step> TlsConnection::write(std::string_view bytes) {
    ::ERR_clear_error();
    size_t written = 0;
    const int result = ::SSL_write_ex(ssl_.get(), bytes.data(), bytes.size(), &written);
    return step(result, written, "send");
}

}  // namespace sparkinfer
