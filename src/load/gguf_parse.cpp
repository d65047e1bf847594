// gguf_parse.cpp — one GGUF file's bytes to metadata and a checked table of tensors.
#include <algorithm>
#include <set>

#include "core/json.h"
#include "load/byte_reader.h"
#include "load/gguf.h"

namespace sparkinfer {

namespace {

// Metadata and tensor table together. The largest known files stay below 20 MiB; the limit bounds what a
// crafted file can make us allocate.
constexpr uint64_t kHeaderBytesMax = 128 << 20;
constexpr uint64_t kNameBytesMax = 64;
constexpr uint64_t kAlignmentDefault = 32;
constexpr uint64_t kKeyValueBytesMin = 8 + 4 + 1;        // empty key, type, one-byte value
constexpr uint64_t kTensorBytesMin = 8 + 4 + 8 + 4 + 8;  // empty name, one dimension

// Printable form of a name from the file.
std::string shown(std::string_view name) {
    std::string out;
    for (const char c : name.substr(0, 80)) out += uint8_t(c) < 0x20 || c == 0x7f ? '?' : c;
    return is_utf8(out) ? out : std::string("(not UTF-8)");
}

Result<std::string_view> read_key(ByteReader& in) {
    TRY(const std::string_view key, in.text("a metadata key"));
    if (!is_utf8(key))
        return bad_input("{}: a metadata key near byte {} is not UTF-8", in.path(), in.position());
    if (key.empty() || key.size() > 65535)
        return bad_input("{}: a metadata key near byte {} has {} bytes, expected 1 to 65535", in.path(),
                         in.position(), key.size());
    return key;
}

// One number of type T as the metadata's Stored kind (bool, int64_t, uint64_t, double).
template <class T, class Stored>
Result<MetadataValue> scalar(ByteReader& in) {
    TRY(const T value, in.number<T>("a metadata value"));
    return MetadataValue(Stored(+value));
}

Result<bool> boolean(ByteReader& in, std::string_view key) {
    TRY(const uint8_t value, in.number<uint8_t>("a boolean metadata value"));
    if (value > 1)
        return bad_input("{}: metadata key '{}' is a boolean with the byte {}, expected 0 or 1", in.path(),
                         shown(key), value);
    return value == 1;
}

Error array_too_long(const ByteReader& in, std::string_view key, uint64_t count) {
    return bad_input("{}: metadata key '{}' claims an array of {} elements, but only {} bytes follow",
                     in.path(), shown(key), count, in.remaining());
}

template <class T, class Stored>
Result<MetadataValue> numbers(ByteReader& in, uint64_t count, std::string_view key) {
    if (count > in.remaining() / sizeof(T)) return array_too_long(in, key, count);
    std::vector<Stored> values(count);
    const std::byte* bytes = in.take(count * sizeof(T));
    for (uint64_t i = 0; i < count; i++) {
        T value;
        std::memcpy(&value, bytes + i * sizeof(T), sizeof(T));
        if constexpr (std::is_same_v<T, uint64_t>)
            if (value > uint64_t(INT64_MAX))
                return bad_input("{}: metadata key '{}' holds {} at index {}, expected at most {}", in.path(),
                                 shown(key), value, i, INT64_MAX);
        values[i] = Stored(+value);
    }
    return MetadataValue(std::move(values));
}

Result<MetadataValue> booleans(ByteReader& in, uint64_t count, std::string_view key) {
    if (count > in.remaining()) return array_too_long(in, key, count);
    std::vector<bool> values(count);
    for (uint64_t i = 0; i < count; i++) {
        TRY(const bool value, boolean(in, key));
        values[i] = value;
    }
    return MetadataValue(std::move(values));
}

Result<MetadataValue> strings(ByteReader& in, uint64_t count, std::string_view key) {
    if (count > in.remaining() / sizeof(uint64_t)) return array_too_long(in, key, count);
    std::vector<std::string> values(count);
    for (uint64_t i = 0; i < count; i++) {
        TRY(const std::string_view value, in.text("a string in a metadata array"));
        values[i] = value;
    }
    return MetadataValue(std::move(values));
}

Result<MetadataValue> read_array(ByteReader& in, std::string_view key) {
    TRY(const uint32_t type, in.number<uint32_t>("the element type of a metadata array"));
    TRY(const uint64_t count, in.number<uint64_t>("the length of a metadata array"));
    switch (GgufType(type)) {
        case GgufType::u8: return numbers<uint8_t, int64_t>(in, count, key);
        case GgufType::i8: return numbers<int8_t, int64_t>(in, count, key);
        case GgufType::u16: return numbers<uint16_t, int64_t>(in, count, key);
        case GgufType::i16: return numbers<int16_t, int64_t>(in, count, key);
        case GgufType::u32: return numbers<uint32_t, int64_t>(in, count, key);
        case GgufType::i32: return numbers<int32_t, int64_t>(in, count, key);
        case GgufType::u64: return numbers<uint64_t, int64_t>(in, count, key);
        case GgufType::i64: return numbers<int64_t, int64_t>(in, count, key);
        case GgufType::f32: return numbers<float, double>(in, count, key);
        case GgufType::f64: return numbers<double, double>(in, count, key);
        case GgufType::boolean: return booleans(in, count, key);
        case GgufType::string: return strings(in, count, key);
        case GgufType::array:
            return bad_input("{}: metadata key '{}' is an array of arrays, expected an array of plain values",
                             in.path(), shown(key));
    }
    return bad_input("{}: metadata key '{}' is an array of elements of type {}, expected 0 to 12", in.path(),
                     shown(key), type);
}

Result<MetadataValue> read_value(ByteReader& in, std::string_view key) {
    TRY(const uint32_t type, in.number<uint32_t>("the type of a metadata value"));
    switch (GgufType(type)) {
        case GgufType::u8: return scalar<uint8_t, uint64_t>(in);
        case GgufType::i8: return scalar<int8_t, int64_t>(in);
        case GgufType::u16: return scalar<uint16_t, uint64_t>(in);
        case GgufType::i16: return scalar<int16_t, int64_t>(in);
        case GgufType::u32: return scalar<uint32_t, uint64_t>(in);
        case GgufType::i32: return scalar<int32_t, int64_t>(in);
        case GgufType::u64: return scalar<uint64_t, uint64_t>(in);
        case GgufType::i64: return scalar<int64_t, int64_t>(in);
        case GgufType::f32: return scalar<float, double>(in);
        case GgufType::f64: return scalar<double, double>(in);
        case GgufType::boolean: {
            TRY(const bool value, boolean(in, key));
            return MetadataValue(value);
        }
        case GgufType::string: {
            TRY(const std::string_view value, in.text("a metadata string"));
            return MetadataValue(std::string(value));
        }
        case GgufType::array: return read_array(in, key);
    }
    return bad_input("{}: metadata key '{}' has the value type {}, expected 0 to 12", in.path(), shown(key),
                     type);
}

Result<void> read_metadata(ByteReader& in, uint64_t count, GgufContents* contents) {
    for (uint64_t i = 0; i < count; i++) {
        TRY(const std::string_view key, read_key(in));
        const uint64_t start = in.position();
        TRY(MetadataValue value, read_value(in, key));
        if (!contents->metadata.insert(std::string(key), std::move(value)))
            return bad_input("{}: metadata key '{}' occurs twice", in.path(), shown(key));
        contents->entries.push_back({key, in.text_from(start)});
    }
    return {};
}

struct Header {
    uint32_t version = 0;
    uint64_t tensor_count = 0, key_value_count = 0;
};

Result<Header> read_header(ByteReader& in) {
    if (in.remaining() == 0) return bad_input("{}: the file is empty, expected a GGUF file", in.path());
    TRY(const uint32_t magic, in.number<uint32_t>("the magic number"));
    if (magic != 0x46554747u)  // "GGUF"
        return bad_input("{}: is not a GGUF file: it starts with the bytes {:08x}, expected 'GGUF' ({:08x})",
                         in.path(), __builtin_bswap32(magic), 0x47475546u);
    Header header;
    TRY(header.version, in.number<uint32_t>("the version"));
    const uint32_t swapped = __builtin_bswap32(header.version);
    if (header.version > 0xffff && swapped <= 3)
        return bad_input("{}: is a big-endian GGUF file (version {}), expected a little-endian one",
                         in.path(), swapped);
    if (header.version != 2 && header.version != 3)
        return bad_input("{}: has GGUF version {}, expected 2 or 3", in.path(), header.version);
    TRY(header.tensor_count, in.number<uint64_t>("the tensor count"));
    TRY(header.key_value_count, in.number<uint64_t>("the metadata count"));
    if (header.key_value_count > in.remaining() / kKeyValueBytesMin)
        return bad_input("{}: claims {} metadata entries, but only {} bytes follow", in.path(),
                         header.key_value_count, in.remaining());
    if (header.tensor_count > in.remaining() / kTensorBytesMin)
        return bad_input("{}: claims {} tensors, but only {} bytes follow", in.path(), header.tensor_count,
                         in.remaining());
    return header;
}

// Fills shape and bytes of `tensor` from the dimensions in the file (ne[0] runs fastest), checked for
// overflow.
Result<void> set_shape(const ByteReader& in, const uint64_t* ne, uint32_t n_dims, uint32_t type_id,
                       StoredTensor* tensor) {
    int block = 0, block_bytes = 0;
    const std::string name = shown(tensor->name);
    if (!ggml_type_geometry(type_id, &block, &block_bytes))
        return bad_input("{}: tensor '{}' has the unknown type id {}", in.path(), name, type_id);
    uint64_t elements = 1, bytes = 0;
    for (uint32_t i = 0; i < n_dims; i++) {
        if (ne[i] == 0 || ne[i] > uint64_t(INT64_MAX))
            return bad_input("{}: tensor '{}' has {} elements in dimension {}, expected at least 1",
                             in.path(), name, int64_t(ne[i]), i);
        if (__builtin_mul_overflow(elements, ne[i], &elements) || elements > uint64_t(INT64_MAX))
            return bad_input("{}: tensor '{}' has more elements than 64 bits can count", in.path(), name);
    }
    if (ne[0] % uint64_t(block) != 0)
        return bad_input("{}: tensor '{}' has rows of {} elements, expected a multiple of {} for type {}",
                         in.path(), name, ne[0], block, ggml_type_name(type_id));
    if (__builtin_mul_overflow(elements / uint64_t(block), uint64_t(block_bytes), &bytes))
        return bad_input("{}: tensor '{}' has more bytes than 64 bits can count", in.path(), name);
    tensor->type = ggml_type_name(type_id);
    tensor->bytes = bytes;
    for (uint32_t i = n_dims; i-- > 0;) tensor->shape.push_back(int64_t(ne[i]));
    return {};
}

// One line of the tensor table; file_offset is still relative to the data section.
Result<StoredTensor> read_tensor(ByteReader& in, uint32_t* type_id) {
    TRY(const std::string_view name, in.text("a tensor name"));
    if (!is_utf8(name))
        return bad_input("{}: a tensor name near byte {} is not UTF-8", in.path(), in.position());
    if (name.empty() || name.size() > kNameBytesMax)
        return bad_input("{}: the tensor name '{}' has {} bytes, expected 1 to {}", in.path(), shown(name),
                         name.size(), kNameBytesMax);
    StoredTensor tensor;
    tensor.name = name;
    TRY(const uint32_t n_dims, in.number<uint32_t>("the dimension count of a tensor"));
    if (n_dims < 1 || n_dims > 4)
        return bad_input("{}: tensor '{}' has {} dimensions, expected 1 to 4", in.path(), shown(name),
                         n_dims);
    uint64_t ne[4] = {};
    for (uint32_t i = 0; i < n_dims; i++) {
        TRY(ne[i], in.number<uint64_t>("a tensor dimension"));
    }
    TRY(*type_id, in.number<uint32_t>("the type of a tensor"));
    TRY(tensor.file_offset, in.number<uint64_t>("the offset of a tensor"));
    TRY_VOID(set_shape(in, ne, n_dims, *type_id, &tensor));
    return tensor;
}

Result<uint64_t> alignment_of(const Metadata& metadata) {
    TRY(const int64_t alignment,
        metadata.int_or("general.alignment", int64_t(kAlignmentDefault), INT64_MIN, INT64_MAX));
    if (alignment < 1 || alignment > (1 << 30) || !std::has_single_bit(uint64_t(alignment)))
        return bad_input("{}: metadata key 'general.alignment' is {}, expected a power of two up to 2^30",
                         metadata.source(), alignment);
    return uint64_t(alignment);
}

// Checks that the tensors lie aligned and apart inside the data section; makes their offsets absolute.
Result<void> place_tensors(std::span<const std::byte> bytes, uint64_t alignment, GgufContents* contents) {
    const std::string& path = contents->metadata.source();
    const uint64_t data_bytes = bytes.size() > contents->data_start ? bytes.size() - contents->data_start : 0;
    std::vector<StoredTensor*> order;
    order.reserve(contents->tensors.size());
    for (StoredTensor& t : contents->tensors) {
        if (t.file_offset % alignment != 0)
            return bad_input("{}: tensor '{}' lies at offset {}, expected a multiple of {}", path,
                             shown(t.name), t.file_offset, alignment);
        if (t.file_offset > data_bytes || t.bytes > data_bytes - t.file_offset)
            return bad_input(
                "{}: the file is truncated: tensor '{}' needs {} bytes at offset {} of the data, which has "
                "{} bytes",
                path, shown(t.name), t.bytes, t.file_offset, data_bytes);
        order.push_back(&t);
    }
    std::sort(order.begin(), order.end(),
              [](const StoredTensor* a, const StoredTensor* b) { return a->file_offset < b->file_offset; });
    for (size_t i = 1; i < order.size(); i++) {
        const StoredTensor &before = *order[i - 1], &after = *order[i];
        if (before.file_offset + before.bytes > after.file_offset)
            return bad_input("{}: tensors '{}' and '{}' overlap: bytes {} to {} and from {}", path,
                             shown(before.name), shown(after.name), before.file_offset,
                             before.file_offset + before.bytes, after.file_offset);
    }
    for (StoredTensor& t : contents->tensors) {
        t.file_offset += contents->data_start;
        t.data = bytes.data() + t.file_offset;
    }
    return {};
}

}  // namespace

Result<GgufContents> parse_gguf(std::span<const std::byte> bytes, const std::string& path) {
    ByteReader in(bytes.first(std::min<uint64_t>(bytes.size(), kHeaderBytesMax)), path);
    TRY(const Header header, read_header(in));
    GgufContents contents;
    contents.version = header.version;
    contents.metadata = Metadata(path);
    TRY_VOID(read_metadata(in, header.key_value_count, &contents));
    TRY(const uint64_t alignment, alignment_of(contents.metadata));
    if (header.tensor_count > in.remaining() / kTensorBytesMin)
        return bad_input("{}: claims {} tensors, but only {} bytes follow", path, header.tensor_count,
                         in.remaining());
    contents.tensors.reserve(header.tensor_count);
    contents.type_ids.resize(header.tensor_count);
    std::set<std::string_view> names;
    for (uint64_t i = 0; i < header.tensor_count; i++) {
        TRY(StoredTensor tensor, read_tensor(in, &contents.type_ids[i]));
        contents.tensors.push_back(std::move(tensor));
        if (!names.insert(contents.tensors.back().name).second)
            return bad_input("{}: tensor '{}' occurs twice", path, shown(contents.tensors.back().name));
    }
    contents.data_start = (in.position() + alignment - 1) / alignment * alignment;
    TRY_VOID(place_tensors(bytes, alignment, &contents));
    return contents;
}

}  // namespace sparkinfer
