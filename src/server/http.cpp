#include "server/http.h"

namespace sparkinfer {

std::string_view HttpRequest::header(std::string_view name) const {
    for (const auto& [key, value] : headers)
        if (key == name) return value;
    return {};
}

}  // namespace sparkinfer
