// sse.h — one named server-sent event, as the protocols that name their events write it.
#pragma once
#include <string>
#include <string_view>

#include "core/json.h"

namespace sparkinfer {

inline std::string sse_event(std::string_view name, const JsonObject& data) {
    return std::string("event: ").append(name).append("\ndata: ").append(to_json(data)).append("\n\n");
}

}  // namespace sparkinfer
