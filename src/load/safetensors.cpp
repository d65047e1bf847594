// safetensors.cpp — one safetensors file's bytes to a checked table of tensors.
#include "load/safetensors.h"

#include <algorithm>

#include "core/json.h"
#include "load/byte_reader.h"

namespace sparkinfer {

namespace {

constexpr uint64_t kHeaderBytesMax = 100'000'000;  // the limit of the reference implementation

struct Dtype {
    const char* name;
    int bits;
};
constexpr Dtype kDtypes[] = {{"F64", 64},    {"F32", 32},    {"F16", 16}, {"BF16", 16},   {"F8_E4M3", 8},
                             {"F8_E5M2", 8}, {"F8_E8M0", 8}, {"I64", 64}, {"I32", 32},    {"I16", 16},
                             {"I8", 8},      {"U64", 64},    {"U32", 32}, {"U16", 16},    {"U8", 8},
                             {"BOOL", 8},    {"C64", 64},    {"F4", 4},   {"F6_E2M3", 6}, {"F6_E3M2", 6}};

Result<uint64_t> bytes_of(const StoredTensor& t, const std::string& path) {
    const auto* dtype = std::find_if(std::begin(kDtypes), std::end(kDtypes),
                                     [&](const Dtype& d) { return t.type == d.name; });
    if (dtype == std::end(kDtypes))
        return bad_input("{}: tensor '{}' has the unknown dtype '{}'", path, t.name, t.type.substr(0, 40));
    uint64_t bits = uint64_t(dtype->bits);
    for (const int64_t extent : t.shape)
        if (__builtin_mul_overflow(bits, uint64_t(extent), &bits))
            return bad_input("{}: tensor '{}' has more bits than 64 bits can count", path, t.name);
    if (bits % 8 != 0) return bad_input("{}: tensor '{}' does not end at a whole byte", path, t.name);
    return bits / 8;
}

// One entry of the header; file_offset is still relative to the data.
Result<StoredTensor> read_entry(std::string_view name, const Json& value, uint64_t data_bytes,
                                const std::string& path) {
    const std::string source = fmt::format("{}: tensor '{}'", path, name.substr(0, 200));
    TRY(const JsonObject* entry, json_object(value, source, "the header entry"));
    StoredTensor t;
    t.name = name;
    TRY(const std::string_view type, json_string(*entry, "dtype", source));
    t.type = type;
    const Json* shape = json_find(*entry, "shape");
    const Json* offsets = json_find(*entry, "data_offsets");
    if (!shape || !offsets)
        return bad_input("{}: the key '{}' is missing", source, shape ? "data_offsets" : "shape");
    TRY(const JsonArray* extents, json_array(*shape, source, "'shape'"));
    if (extents->size() > 16)
        return bad_input("{} has {} dimensions, expected at most 16", source, extents->size());
    for (const Json& value_of : *extents) {
        int64_t extent = 0;
        if (!json_is_int(value_of, &extent) || extent < 1)
            return bad_input("{}: 'shape' holds {}, expected integers of at least 1", source,
                             to_json(value_of));
        t.shape.push_back(extent);
    }
    TRY(const JsonArray* range, json_array(*offsets, source, "'data_offsets'"));
    int64_t begin = 0, end = 0;
    if (range->size() != 2 || !json_is_int((*range)[0], &begin) || !json_is_int((*range)[1], &end) ||
        begin < 0 || end < begin || uint64_t(end) > data_bytes)
        return bad_input("{}: 'data_offsets' is {}, expected begin and end within {} bytes of data", source,
                         to_json(*offsets).substr(0, 100), data_bytes);
    TRY(t.bytes, bytes_of(t, path));
    if (t.bytes != uint64_t(end - begin))
        return bad_input("{} has {} bytes of data, expected {} for its shape and dtype {}", source,
                         end - begin, t.bytes, t.type);
    t.file_offset = uint64_t(begin);
    return t;
}

// Sorted by offset, each tensor starts where the one before ends, from the first byte of data to the last.
Result<void> check_tiling(std::vector<StoredTensor>* tensors, uint64_t data_bytes, const std::string& path) {
    std::sort(tensors->begin(), tensors->end(), [](const StoredTensor& a, const StoredTensor& b) {
        return a.file_offset != b.file_offset ? a.file_offset < b.file_offset : a.bytes < b.bytes;
    });
    uint64_t expected = 0;
    for (const StoredTensor& t : *tensors) {
        if (t.file_offset < expected)
            return bad_input(
                "{}: tensor '{}' overlaps the one before: it starts at byte {} of the data, expected {}",
                path, t.name, t.file_offset, expected);
        if (t.file_offset > expected)
            return bad_input(
                "{}: there is a gap before tensor '{}': it starts at byte {} of the data, expected {}", path,
                t.name, t.file_offset, expected);
        expected += t.bytes;
    }
    if (expected != data_bytes)
        return bad_input("{}: the tensors end at byte {} of the data, which has {} bytes", path, expected,
                         data_bytes);
    return {};
}

}  // namespace

Result<std::vector<StoredTensor>> parse_safetensors(std::span<const std::byte> bytes,
                                                    const std::string& path) {
    ByteReader in(bytes, path);
    if (bytes.empty()) return bad_input("{}: the file is empty, expected a safetensors file", path);
    TRY(const uint64_t header_bytes, in.number<uint64_t>("the header length"));
    if (header_bytes > kHeaderBytesMax)
        return bad_input("{}: claims a header of {} bytes, expected at most {}; is it a safetensors file?",
                         path, header_bytes, kHeaderBytesMax);
    if (header_bytes > in.remaining()) return in.ends_inside("the header", header_bytes);
    const std::string_view text(reinterpret_cast<const char*>(in.take(header_bytes)), header_bytes);
    TRY(const Json header,
        parse_json(text, path + ": the header", {.depth = 8, .refuse_duplicate_keys = true}));
    TRY(const JsonObject* entries, json_object(header, path, "the header"));
    const uint64_t data_bytes = in.remaining();
    std::vector<StoredTensor> tensors;
    tensors.reserve(entries->size());
    for (const auto& [key, value] : *entries) {
        const std::string_view name(key.data(), key.size());
        if (name == "__metadata__") continue;
        TRY(StoredTensor t, read_entry(name, value, data_bytes, path));
        tensors.push_back(std::move(t));
    }
    TRY_VOID(check_tiling(&tensors, data_bytes, path));
    for (StoredTensor& t : tensors) {
        t.file_offset += in.position();
        t.data = bytes.data() + t.file_offset;
    }
    return tensors;
}

}  // namespace sparkinfer
