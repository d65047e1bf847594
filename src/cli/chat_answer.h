// chat_answer.h — one answer of a chat as it comes onto the screen.
#pragma once
#include <functional>
#include <memory>
#include <string>

#include "cli/streams.h"
#include "server/service.h"

namespace sparkinfer {

struct SpokenAnswer {
    std::string id;                  // under which the service knows it
    std::string reasoning, content;  // as shown
    AnswerFinish finish = AnswerFinish::stop;
    std::string stop;  // the stop string that ended it
    Usage usage;
    double first_s = 0, generation_s = 0;  // to the first text; from there to the end
};

struct AnswerScreen {
    StandardOutput& out;
    bool terminal = false;  // reasoning is shown, control characters are not obeyed
    bool wraps = false;     // lines end between words: a terminal that can move its cursor
    bool colour = false;
    std::function<int64_t()> rows_read = {};  // prompt tokens computed since the model was opened
};

// Starts the answer and writes it as it comes. Ctrl-C, and a reader that has gone away, end it as
// `cancelled`; interrupted() is false again afterwards. Errors: of the service, of the device, of stdout.
Result<SpokenAnswer> speak(Service& service, std::shared_ptr<Prepared> prepared, const AnswerScreen& screen);

}  // namespace sparkinfer
