// json_stream.h — JSON that arrives or leaves in pieces: string contents escaped piece by piece, and values
// passed on while they are still being written, so that they can be closed at any moment.
#pragma once
#include <cstdint>
#include <string>
#include <string_view>

namespace sparkinfer {

// Appends `text` as it stands between the quotes of a JSON string; pieces may end anywhere.
void append_json_escaped(std::string_view text, std::string& out);

// Reads one JSON value byte by byte and passes it on. What it passes on is at any moment the beginning of a
// valid value that closing() completes: commas, keys, numbers and literals wait until the value after them,
// or their own end, has come. Control characters in strings, which JSON forbids and models write, are
// escaped.
class JsonReader {
  public:
    enum class State {
        reading,  // the value goes on
        done,     // the value ended; a number ends before the byte that is not part of it
        broken    // the byte at `at` cannot follow
    };

    // Reads from text[at] on, advances `at` to the first byte that was not read and appends to `out`.
    State read(std::string_view text, size_t& at, std::string& out);
    // What makes a value of the text that was passed on; a value that has not begun is null.
    std::string closing() const;
    // The text ends: a number that is complete so far is passed on. Whether the value is complete.
    bool finish(std::string& out);

  private:
    enum class Expect { value, value_or_close, key, key_or_close, colon, comma_or_close, nothing };
    enum class Lexeme { none, string, literal, number };
    enum class Step { taken, again, done, broken };

    Step take(char c, std::string& out);
    Step begin(char c, std::string& out);
    Step open(char c, std::string& out);
    Step close(char c, std::string& out);
    Step begin_scalar(char c);
    Step in_string(char c, std::string& out);
    Step in_escape(char c, std::string& out);
    Step in_literal(char c, std::string& out);
    Step in_number(char c, std::string& out);
    Step value_ended(std::string& out);
    void pass(std::string& out);

    Expect expect_ = Expect::value;
    Lexeme lexeme_ = Lexeme::none;
    bool key_ = false;          // the string is a key
    std::string open_;          // containers that were passed on, by their closing brackets
    std::string pending_;       // read, not yet passed on
    bool begun_ = false;        // something was passed on
    bool string_open_ = false;  // a string value was begun and passed on
    std::string_view literal_;  // what is left of true, false, null
    char number_ = 0;           // what the number's last bytes were: see in_number
    int escape_ = 0;            // 0: none, 1: after a backslash, 2…5: hex digits of \u
    uint32_t code_unit_ = 0;    // of \u
};

}  // namespace sparkinfer
