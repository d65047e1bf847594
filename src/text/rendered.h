// rendered.h — a chat as the template printed it, with the places that may not become control tokens.
#pragma once
#include <cstddef>
#include <string>
#include <vector>

namespace sparkinfer {

struct ByteRange {
    size_t begin;  // bytes
    size_t end;
};

struct Rendered {
    std::string text;  // byte for byte what Jinja2 prints
    std::vector<ByteRange>
        guarded;  // sorted, disjoint: bytes from message text that a control token may not touch
};

}  // namespace sparkinfer
