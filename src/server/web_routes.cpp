#include "server/web_files.h"

namespace sparkinfer {

namespace {

// Pages may load what this server has, and nothing else: no inline scripts, no other hosts, no frames.
constexpr const char* kContentSecurityPolicy =
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; font-src 'self'; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

std::string_view content_type(std::string_view name) {
    constexpr std::pair<std::string_view, std::string_view> kTypes[] = {
        {".html", "text/html; charset=utf-8"},
        {".js", "text/javascript; charset=utf-8"},
        {".mjs", "text/javascript; charset=utf-8"},
        {".css", "text/css; charset=utf-8"},
        {".svg", "image/svg+xml"},
        {".png", "image/png"},
        {".ico", "image/x-icon"},
        {".woff2", "font/woff2"},
        {".json", "application/json"},
        {".txt", "text/plain; charset=utf-8"}};
    for (const auto& [ending, type] : kTypes)
        if (name.size() > ending.size() && name.substr(name.size() - ending.size()) == ending) return type;
    return "application/octet-stream";
}

std::string path_of(std::string_view name) {
    if (name == "index.html") return "/";
    if (name == "dashboard.html") return "/dashboard";
    return "/static/" + std::string(name);
}

void send_file(const WebFile& file, const HttpRequest& request, Responder& responder) {
    const std::string tag = '"' + std::string(file.hash) + '"';
    // no-cache: kept, and asked about each time, so that a new program shows its own page.
    Responder::Headers headers = {{"etag", tag},
                                  {"cache-control", "no-cache"},
                                  {"content-security-policy", kContentSecurityPolicy},
                                  {"referrer-policy", "no-referrer"},
                                  {"x-frame-options", "DENY"},
                                  {"cross-origin-opener-policy", "same-origin"},
                                  {"cross-origin-resource-policy", "same-origin"}};
    if (request.header("if-none-match").find(tag) != std::string_view::npos)
        return responder.send(304, "", "", std::move(headers));
    responder.send(200, content_type(file.name), std::string(file.bytes), std::move(headers));
}

}  // namespace

std::vector<Route> web_routes() {
    std::vector<Route> routes;
    for (const WebFile& file : web_files())
        routes.push_back({"GET", path_of(file.name), Route::Access::open,
                          [&file](const HttpRequest& request, const std::shared_ptr<Responder>& responder) {
                              send_file(file, request, *responder);
                          },
                          /*light=*/true});
    return routes;
}

}  // namespace sparkinfer
