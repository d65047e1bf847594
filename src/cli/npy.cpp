#include "cli/npy.h"

#include "core/check.h"
#include "core/file.h"

namespace sparkinfer {

namespace {

constexpr uint64_t kMaxBytes = uint64_t(1) << 32;  // of an array of ids

// Reads the dictionary of the header, a Python literal: {'descr': '<i8', 'fortran_order': False, 'shape':
// (5,), }
class Literal {
  public:
    explicit Literal(std::string_view text) : rest_(text) {}
    bool take(std::string_view word) {
        while (!rest_.empty() && (rest_[0] == ' ' || rest_[0] == '\n')) rest_.remove_prefix(1);
        if (rest_.substr(0, word.size()) != word) return false;
        rest_.remove_prefix(word.size());
        return true;
    }
    // A quoted string without escapes.
    bool string(std::string* out) {
        const char quote = take("'") ? '\'' : take("\"") ? '"' : 0;
        if (!quote) return false;
        const size_t end = rest_.find(quote);
        if (end == std::string_view::npos) return false;
        *out = rest_.substr(0, end);
        rest_.remove_prefix(end + 1);
        return out->find('\\') == std::string::npos;
    }
    bool number(uint64_t* out) {
        take("");
        size_t digits = 0;
        uint64_t value = 0;
        for (; digits < rest_.size() && rest_[digits] >= '0' && rest_[digits] <= '9'; ++digits) {
            if (digits == 18) return false;
            value = value * 10 + uint64_t(rest_[digits] - '0');
        }
        rest_.remove_prefix(digits);
        *out = value;
        return digits > 0;
    }
    bool end() {
        take("");
        return rest_.empty();
    }

  private:
    std::string_view rest_;
};

struct Header {
    std::string type;
    bool fortran = false;
    std::vector<uint64_t> shape;
};

bool parse_shape(Literal& text, std::vector<uint64_t>* shape) {
    if (!text.take("(")) return false;
    while (!text.take(")")) {
        uint64_t size = 0;
        if (shape->size() == 32 || !text.number(&size)) return false;
        shape->push_back(size);
        if (!text.take(",")) return text.take(")");
    }
    return true;
}

// False: the text is no such dictionary, or a key is missing, unknown or there twice.
bool parse_header(std::string_view bytes, Header* header) {
    Literal text(bytes);
    if (!text.take("{")) return false;
    unsigned seen = 0;
    while (!text.take("}")) {
        std::string key;
        unsigned bit = 0;
        if (!text.string(&key) || !text.take(":")) return false;
        if (key == "descr") {
            bit = 1;
            if (!text.string(&header->type)) return false;
        } else if (key == "fortran_order") {
            bit = 2;
            header->fortran = text.take("True");
            if (!header->fortran && !text.take("False")) return false;
        } else if (key == "shape") {
            bit = 4;
            if (!parse_shape(text, &header->shape)) return false;
        }
        if (bit == 0 || (seen & bit)) return false;
        seen |= bit;
        if (text.take(",")) continue;
        if (!text.take("}")) return false;
        break;
    }
    return seen == 7 && text.end();
}

uint64_t little_endian(std::string_view bytes) {
    uint64_t value = 0;
    for (size_t i = bytes.size(); i-- > 0;) value = value << 8 | uint8_t(bytes[i]);
    return value;
}

}  // namespace

Result<std::vector<int32_t>> parse_npy_ids(const std::string& name, std::string_view bytes) {
    if (bytes.size() < 10 || bytes.substr(0, 6) != "\x93NUMPY")
        return bad_input("{}: is no .npy file: it does not start with \\x93NUMPY and a header", name);
    const int version = uint8_t(bytes[6]), minor = uint8_t(bytes[7]);
    if (version < 1 || version > 3 || minor != 0)
        return bad_input("{}: .npy version {}.{}, expected 1.0, 2.0 or 3.0", name, version, minor);
    const size_t length_bytes = version == 1 ? 2 : 4, start = 8 + length_bytes;
    if (bytes.size() < start) return bad_input("{}: ends inside the .npy header", name);
    const uint64_t header_bytes = little_endian(bytes.substr(8, length_bytes));
    if (header_bytes > bytes.size() - start)
        return bad_input("{}: the .npy header claims {} bytes, the file has {} left", name, header_bytes,
                         bytes.size() - start);
    Header header;
    if (!parse_header(bytes.substr(start, header_bytes), &header))
        return bad_input("{}: the .npy header is not a dictionary of descr, fortran_order and shape", name);
    if (header.type != "<i4" && header.type != "<i8")
        return bad_input("{}: holds values of type '{}', expected '<i4' or '<i8' (int32, int64)", name,
                         header.type);
    if (header.shape.size() != 1)
        return bad_input("{}: has {} dimensions, expected 1", name, header.shape.size());
    const std::string_view data = bytes.substr(start + header_bytes);
    const uint64_t width = header.type == "<i4" ? 4 : 8, count = header.shape[0];
    if (count > data.size() / width || count * width != data.size())
        return bad_input("{}: shape ({},) of {} bytes each, and {} bytes of data", name, count, width,
                         data.size());
    std::vector<int32_t> ids(count);
    for (uint64_t i = 0; i < count; ++i) {
        uint64_t value = little_endian(data.substr(i * width, width));
        if (width == 4) value = uint64_t(int64_t(int32_t(uint32_t(value))));
        if (value > uint64_t(INT32_MAX))
            return bad_input("{}: value {} is {}, expected a token id", name, i, int64_t(value));
        ids[i] = int32_t(value);
    }
    return ids;
}

Result<std::vector<int32_t>> read_npy_ids(const std::string& path) {
    TRY(const std::string bytes, read_text_file(path, kMaxBytes));
    return parse_npy_ids(path, bytes);
}

Result<NpyWriter> NpyWriter::create(const std::string& path, int64_t rows, int64_t columns) {
    TRY(NewFile file, NewFile::create(path));
    std::string header =
        fmt::format("{{'descr': '<f4', 'fortran_order': False, 'shape': ({}, {}), }}", rows, columns);
    const size_t padded =
        (10 + header.size() + 1 + 63) / 64 * 64 - 10;  // data starts at a multiple of 64 bytes
    header.resize(padded - 1, ' ');
    header += '\n';
    const char start[] = {'\x93', 'N', 'U', 'M', 'P', 'Y', 1, 0, char(padded & 255), char(padded >> 8)};
    TRY_VOID(file.write(std::string_view(start, sizeof start)));
    TRY_VOID(file.write(header));
    return NpyWriter(std::move(file), rows, columns);
}

Result<void> NpyWriter::write_row(std::span<const float> row) {
    CHECK(int64_t(row.size()) == columns_ && written_ < rows_, "row {} of {} has {} columns, not {}",
          written_, rows_, row.size(), columns_);
    ++written_;
    return file_.write(std::as_bytes(row));
}

Result<void> NpyWriter::commit() {
    CHECK(written_ == rows_, "{} of {} rows were written", written_, rows_);
    return file_.commit();
}

}  // namespace sparkinfer
