// streams.h — the process's three streams and its interrupt key, as commands use them.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

#include "cli/options.h"
#include "core/result.h"

namespace sparkinfer {

constexpr uint64_t kMaxTextBytes = uint64_t(64) << 20;

// Where the first byte that is not UTF-8 lies (RFC 3629: no overlong forms, no surrogates, at most U+10FFFF);
// npos when all is well.
size_t utf8_error_offset(std::string_view text);

// The text of `source`, byte for byte: nothing is trimmed. `what` names it in errors ("the prompt"). Errors:
// an unreadable file, more than kMaxTextBytes, invalid UTF-8 (with its offset), an empty text.
Result<std::string> read_text(const TextSource& source, const char* what);

// stdout. Writes go out at once. When the reader has gone away, closed() turns true and everything further is
// swallowed; other trouble is an error, as is a stdout that was closed from the beginning.
class StandardOutput {
  public:
    Result<void> write(std::string_view text);
    bool closed() const { return closed_; }

  private:
    bool closed_ = false;
};

// Gives a closed stdin, stdout or stderr a descriptor that can neither be read nor written, so that no file
// of ours gets its number.
void occupy_standard_descriptors();

// Ctrl-C. From watch_interrupts() on, SIGINT ends the process at once with exit code 130 — nothing to tidy up
// yet — until a Deferred exists: then the first one sets interrupted() for the loop to see, and only the
// second ends it.
void watch_interrupts();
bool interrupted();
bool terminated();       // the same by SIGTERM, which ends more than what is under way
void clear_interrupt();  // what was interrupted has ended, and the program goes on
constexpr int kExitInterrupted = 130;
class Deferred {
  public:
    Deferred();
    ~Deferred();
    Deferred(const Deferred&) = delete;
    Deferred& operator=(const Deferred&) = delete;
};

}  // namespace sparkinfer
