// gguf_test_builder.h — for tests: GGUF files byte by byte, right ones and wrong ones.
#pragma once
#include <cstdint>
#include <cstring>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

namespace sparkinfer {

// Little-endian bytes, appended piece by piece.
class ByteBuilder {
  public:
    template <class T>
    ByteBuilder& put(T value) {
        const auto* p = reinterpret_cast<const char*>(&value);
        bytes_.append(p, sizeof value);
        return *this;
    }
    ByteBuilder& put_text(std::string_view text) {  // u64 length, bytes
        put<uint64_t>(text.size());
        bytes_ += text;
        return *this;
    }
    ByteBuilder& put_raw(std::string_view raw) {
        bytes_ += raw;
        return *this;
    }
    const std::string& bytes() const { return bytes_; }

  private:
    std::string bytes_;
};

// Metadata entries and tensors are appended as told; bytes() lays the file out. The public numbers override
// what a proper file would say.
class GgufBuilder {
  public:
    uint32_t magic = 0x46554747, version = 3;
    int64_t tensor_count = -1, key_value_count = -1;  // -1: the true ones
    uint64_t alignment = 32;                          // of the layout; the metadata key is up to the test

    GgufBuilder& text(std::string_view key, std::string_view value) {
        entry(key, 8).put_text(value);
        return *this;
    }
    template <class T>
    GgufBuilder& number(std::string_view key, uint32_t type, T value) {
        entry(key, type).put(value);
        return *this;
    }
    template <class T>
    GgufBuilder& array(std::string_view key, uint32_t type, const std::vector<T>& values) {
        ByteBuilder& b = entry(key, 9).put(type).template put<uint64_t>(values.size());
        for (const T& value : values) b.put(value);
        return *this;
    }
    GgufBuilder& texts(std::string_view key, const std::vector<std::string>& values) {
        ByteBuilder& b = entry(key, 9).put<uint32_t>(8).put<uint64_t>(values.size());
        for (const std::string& value : values) b.put_text(value);
        return *this;
    }
    // Any entry: the caller appends the value.
    ByteBuilder& entry(std::string_view key, uint32_t type) {
        entries_++;
        return metadata_.put_text(key).put(type);
    }

    // A tensor of `data`; dimensions in file order, the fastest first. `offset` -1: behind the one before.
    GgufBuilder& tensor(std::string_view name, const std::vector<uint64_t>& ne, uint32_t type,
                        std::string_view data, int64_t offset = -1) {
        tensors_++;
        while (data_.size() % alignment) data_ += '\0';
        table_.put_text(name).put<uint32_t>(uint32_t(ne.size()));
        for (const uint64_t extent : ne) table_.put(extent);
        table_.put(type).put<uint64_t>(offset < 0 ? data_.size() : uint64_t(offset));
        data_ += data;
        return *this;
    }

    std::string bytes() const {
        ByteBuilder file;
        file.put(magic).put(version);
        file.put<uint64_t>(uint64_t(tensor_count < 0 ? tensors_ : tensor_count));
        file.put<uint64_t>(uint64_t(key_value_count < 0 ? entries_ : key_value_count));
        file.put_raw(metadata_.bytes()).put_raw(table_.bytes());
        std::string all = file.bytes();
        while (tensors_ && all.size() % alignment) all += '\0';
        return all + data_;
    }

  private:
    ByteBuilder metadata_, table_;
    std::string data_;
    int64_t entries_ = 0, tensors_ = 0;
};

inline void write_file(const std::string& path, std::string_view bytes) {
    std::ofstream(path, std::ios::binary).write(bytes.data(), std::streamsize(bytes.size()));
}

}  // namespace sparkinfer
