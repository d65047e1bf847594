// byte_reader.h — reads little-endian numbers and strings from bytes of a file, never past their end.
#pragma once
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>

#include "core/result.h"

namespace sparkinfer {

static_assert(std::endian::native == std::endian::little, "files and memory have the same byte order");

class ByteReader {
  public:
    // Reads `bytes` from the start; `path` names the file in messages and outlives the reader.
    ByteReader(std::span<const std::byte> bytes, const std::string& path) : bytes_(bytes), path_(path) {}

    uint64_t position() const { return position_; }
    uint64_t remaining() const { return bytes_.size() - position_; }
    const std::string& path() const { return path_; }

    // The next number. `what` says what it is, for the message of a file that ends too early.
    template <class T>
    Result<T> number(const char* what) {
        if (remaining() < sizeof(T)) return ends_inside(what, sizeof(T));
        T value;
        std::memcpy(&value, bytes_.data() + position_, sizeof value);
        position_ += sizeof value;
        return value;
    }

    // A u64 byte length and that many bytes; a view into the file.
    Result<std::string_view> text(const char* what) {
        TRY(const uint64_t length, number<uint64_t>(what));
        if (length > remaining()) return ends_inside(what, length);
        const std::string_view view(reinterpret_cast<const char*>(bytes_.data()) + position_, length);
        position_ += length;
        return view;
    }

    // What was read since the position `start` was reached; a view into the file.
    std::string_view text_from(uint64_t start) const {
        return {reinterpret_cast<const char*>(bytes_.data()) + start, size_t(position_ - start)};
    }

    // The next n bytes, which the caller has checked to be there.
    const std::byte* take(uint64_t n) {
        const std::byte* start = bytes_.data() + position_;
        position_ += n;
        return start;
    }

    Error ends_inside(const char* what, uint64_t needed) const {
        return bad_input(
            "{}: the file is truncated or damaged: {} at byte {} needs {} bytes, and {} are left", path_,
            what, position_, needed, remaining());
    }

  private:
    std::span<const std::byte> bytes_;
    const std::string& path_;
    uint64_t position_ = 0;
};

}  // namespace sparkinfer
