#include "load/imatrix.h"

#include <cmath>
#include <cstring>

#include "core/file.h"
#include "load/byte_reader.h"
#include "load/gguf.h"

namespace sparkinfer {

namespace {

using TensorsByName = std::map<std::string_view, const StoredTensor*>;

constexpr std::string_view kSums = ".in_sum2", kCounts = ".counts";

Result<void> insert(Imatrix* imatrix, const std::string& path, std::string name, std::vector<float> columns) {
    for (size_t i = 0; i < columns.size(); i++)
        if (!std::isfinite(columns[i]) || columns[i] < 0)
            return bad_input("{}: the importance of column {} of '{}' is {}, expected a number from 0", path,
                             i, name, columns[i]);
    if (!imatrix->columns.emplace(name, std::move(columns)).second)
        return bad_input("{}: tensor '{}' occurs twice", path, name);
    return {};
}

Result<std::vector<float>> floats_of(const StoredTensor& t, const std::string& path) {
    if (t.type != "F32") return bad_input("{}: tensor '{}' has type {}, expected F32", path, t.name, t.type);
    std::vector<float> values(t.bytes / sizeof(float));
    std::memcpy(values.data(), t.data, t.bytes);
    return values;
}

// Sums of squares and how many rows were summed, one count an expert.
Result<void> add_gguf_tensor(const TensorsByName& tensors, const StoredTensor& t, const std::string& path,
                             Imatrix* imatrix) {
    const std::string name = t.name.substr(0, t.name.size() - kSums.size());
    const auto counted = tensors.find(name + std::string(kCounts));
    if (counted == tensors.end()) return bad_input("{}: tensor '{}{}' is missing", path, name, kCounts);
    TRY(std::vector<float> sums, floats_of(t, path));
    TRY(const std::vector<float> counts, floats_of(*counted->second, path));
    if (counts.empty() || sums.size() % counts.size() != 0)
        return bad_input("{}: tensor '{}' has {} values for {} counts, expected a multiple", path, t.name,
                         sums.size(), counts.size());
    const size_t columns = sums.size() / counts.size();
    for (size_t i = 0; i < sums.size(); i++) {
        const float count = counts[i / columns];
        sums[i] = count > 0 ? sums[i] / count : 1;  // an expert that saw nothing: all columns alike
    }
    return insert(imatrix, path, name, std::move(sums));
}

Result<Imatrix> from_gguf(const MappedFile& file) {
    TRY(const GgufContents contents, parse_gguf(file.bytes(), file.path()));
    TRY(const std::string type, contents.metadata.string_or("general.type", ""));
    if (type != "imatrix")
        return bad_input("{}: metadata key 'general.type' is '{}', expected 'imatrix'", file.path(), type);
    Imatrix imatrix;
    TRY(imatrix.chunks, contents.metadata.int_or("imatrix.chunk_count", 0, 0, INT32_MAX));
    TRY(const std::vector<std::string>* const datasets, contents.metadata.strings("imatrix.datasets"));
    if (datasets && !datasets->empty()) imatrix.dataset = datasets->front();
    TensorsByName tensors;
    for (const StoredTensor& t : contents.tensors) tensors.emplace(t.name, &t);
    for (const StoredTensor& t : contents.tensors)
        if (t.name.ends_with(kSums)) TRY_VOID(add_gguf_tensor(tensors, t, file.path(), &imatrix));
    return imatrix;
}

// i32 length and that many bytes.
Result<std::string> short_text(ByteReader& in, const char* what) {
    TRY(const int32_t length, in.number<int32_t>(what));
    if (length < 0 || uint64_t(length) > in.remaining())
        return in.ends_inside(what, uint64_t(uint32_t(length)));
    const auto* bytes = reinterpret_cast<const char*>(in.take(uint64_t(length)));
    return std::string(bytes, size_t(length));
}

// i32 count; entries {i32 length, name, i32 calls, i32 values, f32 values}; i32 chunks, i32 length, data set.
// The values are sums over the calls.
Result<Imatrix> from_headerless(const MappedFile& file) {
    ByteReader in(file.bytes(), file.path());
    Imatrix imatrix;
    TRY(const int32_t entries, in.number<int32_t>("the number of entries"));
    if (entries < 1 || uint64_t(entries) > in.remaining() / 12)
        return bad_input("{}: is no importance matrix: neither a GGUF file nor a count of entries ({})",
                         file.path(), entries);
    for (int32_t e = 0; e < entries; e++) {
        TRY(std::string name, short_text(in, "a tensor name"));
        TRY(const int32_t calls, in.number<int32_t>("a count of calls"));
        TRY(const int32_t count, in.number<int32_t>("a count of values"));
        if (name.empty() || count < 1 || uint64_t(count) > in.remaining() / sizeof(float))
            return bad_input("{}: entry {} ('{}') claims {} values, and {} bytes follow", file.path(), e,
                             name, count, in.remaining());
        std::vector<float> values(static_cast<size_t>(count));
        std::memcpy(values.data(), in.take(uint64_t(count) * sizeof(float)), values.size() * sizeof(float));
        if (calls > 0)
            for (float& value : values) value /= float(calls);
        TRY_VOID(insert(&imatrix, file.path(), std::move(name), std::move(values)));
    }
    if (in.remaining() == 0) return imatrix;
    TRY(imatrix.chunks, in.number<int32_t>("the number of chunks"));
    if (in.remaining() > 0) {
        TRY(imatrix.dataset, short_text(in, "the name of the data set"));
    }
    return imatrix;
}

}  // namespace

Result<Imatrix> read_imatrix(const std::string& path) {
    TRY(const MappedFile file, MappedFile::open(path));
    if (file.size() >= 4 && std::memcmp(file.data(), "GGUF", 4) == 0) return from_gguf(file);
    return from_headerless(file);
}

}  // namespace sparkinfer
