#include "load/gguf_writer.h"

#include <algorithm>

#include "core/check.h"
#include "load/gguf.h"

namespace sparkinfer {

namespace {

constexpr uint64_t kAlignment = 32;  // what a file without general.alignment has

template <class T>
void put(std::string* out, T value) {
    out->append(reinterpret_cast<const char*>(&value), sizeof value);
}

void put_text(std::string* out, std::string_view text) {
    put<uint64_t>(out, text.size());
    out->append(text);
}

template <class T>
std::string scalar(GgufType type, T value) {
    std::string out;
    put(&out, uint32_t(type));
    put(&out, value);
    return out;
}

std::string array_head(GgufType type, size_t count) {
    std::string out;
    put(&out, uint32_t(GgufType::array));
    put(&out, uint32_t(type));
    put<uint64_t>(&out, count);
    return out;
}

uint64_t padded(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

}  // namespace

std::string gguf_u32(uint32_t value) { return scalar(GgufType::u32, value); }
std::string gguf_i32(int32_t value) { return scalar(GgufType::i32, value); }
std::string gguf_f32(float value) { return scalar(GgufType::f32, value); }
std::string gguf_bool(bool value) { return scalar(GgufType::boolean, uint8_t(value)); }

std::string gguf_text(std::string_view value) {
    std::string out;
    put(&out, uint32_t(GgufType::string));
    put_text(&out, value);
    return out;
}

std::string gguf_texts(const std::vector<std::string>& values) {
    std::string out = array_head(GgufType::string, values.size());
    for (const std::string& value : values) put_text(&out, value);
    return out;
}

std::string gguf_i32s(const std::vector<int32_t>& values) {
    std::string out = array_head(GgufType::i32, values.size());
    for (const int32_t value : values) put(&out, value);
    return out;
}

std::string gguf_bools(const std::vector<bool>& values) {
    std::string out = array_head(GgufType::boolean, values.size());
    for (const bool value : values) put(&out, uint8_t(value));
    return out;
}

void GgufWriter::set(std::string_view key, std::string value) {
    const auto at =
        std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.key == key; });
    if (at == entries_.end())
        entries_.push_back({std::string(key), std::move(value)});
    else
        at->value = std::move(value);
}

void GgufWriter::erase(std::string_view key) {
    std::erase_if(entries_, [&](const Entry& e) { return e.key == key; });
}

std::string GgufWriter::header() const {
    std::string out;
    put(&out, 0x46554747u);  // "GGUF"
    put<uint32_t>(&out, 3);
    put<uint64_t>(&out, tensors_.size());
    put<uint64_t>(&out, entries_.size());
    for (const Entry& e : entries_) {
        put_text(&out, e.key);
        out += e.value;
    }
    uint64_t offset = 0;
    for (const Tensor& t : tensors_) {
        put_text(&out, t.name);
        put(&out, uint32_t(t.shape.size()));
        for (size_t i = t.shape.size(); i-- > 0;) put(&out, uint64_t(t.shape[i]));
        put(&out, t.type_id);
        put(&out, offset);
        offset += padded(t.bytes);
    }
    out.resize(padded(out.size()), '\0');
    return out;
}

uint64_t GgufWriter::file_bytes() const {
    uint64_t bytes = header().size();
    for (const Tensor& t : tensors_) bytes += padded(t.bytes);
    return bytes;
}

Result<void> GgufWriter::begin(NewFile& file) {
    const std::string bytes = header();
    TRY_VOID(file.reserve(file_bytes()));
    TRY_VOID(file.write(bytes));
    next_ = 0;
    expected_ = file.written() + (tensors_.empty() ? 0 : tensors_[0].bytes);
    return {};
}

Result<void> GgufWriter::end_tensor(NewFile& file) {
    CHECK(next_ < tensors_.size() && file.written() == expected_, "tensor {} ends at {}, not {}", next_,
          file.written(), expected_);
    const uint64_t end = padded(expected_);
    TRY_VOID(file.write(std::string(end - expected_, '\0')));
    next_++;
    expected_ = end + (next_ < tensors_.size() ? tensors_[next_].bytes : 0);
    return {};
}

}  // namespace sparkinfer
