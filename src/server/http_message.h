// http_message.h — answers as the text that goes over the wire.
#pragma once
#include <string>
#include <string_view>

#include "server/http.h"

namespace sparkinfer {

const char* status_text(int status);

// Framing of the body: its length, in chunks, or by the end of the connection (HTTP/1.0).
enum class Framing { length, chunked, until_close };

struct AnswerHead {
    int status = 200;
    std::string_view content_type = {};
    Framing framing = Framing::length;
    size_t length = 0;       // framing == length
    bool keep_alive = true;  // the connection stays
    bool http10 = false;
    std::string_view request_id = {};
};
// The head with its empty line. A field of `headers` takes the place of a default one of its name
// (cache-control); control characters in values become spaces.
std::string head_text(const AnswerHead& head, const Responder::Headers& headers,
                      const Responder::Headers& more);

// One chunk; `bytes` must not be empty, since that is the end.
std::string chunk_text(std::string_view bytes);
constexpr std::string_view kLastChunk = "0\r\n\r\n";

// A request id of the client that may go into logs and answers: 1 to 128 letters, digits, '-', '_', '.', ':'.
bool is_request_id(std::string_view text);

}  // namespace sparkinfer
