// web_files.h — the files of src/server/web, which are inside the program.
#pragma once
#include <span>
#include <string_view>
#include <vector>

#include "server/http.h"

namespace sparkinfer {

struct WebFile {
    std::string_view name;  // "index.html"
    std::string_view hash;  // of the bytes: the ETag
    std::string_view bytes;
};
std::span<const WebFile> web_files();

// A public route a file: "/" is index.html, "/dashboard" is dashboard.html, the others are "/static/NAME".
std::vector<Route> web_routes();

}  // namespace sparkinfer
