// answer_pump.h — from requests that are ready to run to the bytes of their answer: starts them, turns each
// event into what a protocol says, streams it or collects it, and ends everything exactly once: when all is
// finished, at the first failure, or when the client is gone.
//
//     pump_answer(service, {.prepared = {prepared}, .answer_id = id, .stream = call.stream,
//                           .path = request.path, .request_id = request.id},
//                 std::make_unique<ChatStream>(…), responder);
#pragma once
#include <memory>
#include <string>
#include <vector>

#include "server/api.h"
#include "server/chat.h"
#include "server/http.h"
#include "server/service.h"

namespace sparkinfer {

// How one protocol says one answer. All calls come from one thread at a time, in the order of the events.
// A streaming writer appends wire bytes as it goes; a collecting one appends the whole body in end().
class AnswerWriter {
  public:
    virtual ~AnswerWriter() = default;
    // Any event but `failed`. Of several requests (a list of prompts), choices are numbered through.
    virtual void write(const AnswerEvent& event, std::string* out) = 0;
    // Every choice is finished. `usage` is that of all requests together.
    virtual void end(const Usage& usage, std::string* out) = 0;
    // The error of an answer whose head was sent already. Collecting writers are not asked.
    virtual void fail(const ApiError& error, std::string* out) = 0;
};

struct PumpOrder {
    std::vector<std::shared_ptr<Prepared>> prepared;
    int32_t n = 1;  // choices of each
    std::string answer_id;
    bool stream = false;
    std::string path, request_id;  // of the HTTP request: errors are said in its protocol
    std::string keep_alive = ": keep-alive\n\n";
};

// Answers through `responder`, now or later. Errors of starting become its status.
void pump_answer(Service& service, PumpOrder order, std::unique_ptr<AnswerWriter> writer,
                 std::shared_ptr<Responder> responder);

// Logs what was understood otherwise than it was said.
void log_notices(const std::string& request_id, const Prepared& prepared);

}  // namespace sparkinfer
