// tools.h — the functions a chat offers to its model, as every protocol and every tool format speaks of them.
#pragma once
#include <string>
#include <vector>

#include "core/json.h"

namespace sparkinfer {

struct ToolSpec {
    std::string name;
    std::string description = {};
    Json parameters = JsonObject{};  // a JSON Schema object, as the client sent it
    bool strict = false;             // a keyword that cannot be enforced is an error, not a notice
};

struct ToolChoice {
    enum class Kind { automatic, none, required, named };
    Kind kind = Kind::automatic;
    std::string name = {};  // kind == named
};

}  // namespace sparkinfer
