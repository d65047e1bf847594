#include "cli/inspect_strict.h"

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "cli/progress.h"
#include "core/half.h"
#include "load/quantize_plan.h"
#include "model/model.h"
#include "quant/decode.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace sparkinfer {

namespace {

using Sentences = std::vector<std::string>;

constexpr int64_t kValuesAtOnce = int64_t(1) << 20;
constexpr uint64_t kHashedBytesMin = 4096;  // smaller tensors may well be equal

// What one pass over a tensor's values finds.
struct Values {
    int64_t odd = 0, first_odd = -1;  // not finite
    bool zeros = true;
    void see(const float* values, int64_t count, int64_t at) {
        for (int64_t i = 0; i < count; ++i) {
            zeros = zeros && values[i] == 0;
            if (std::isfinite(values[i])) continue;
            if (odd++ == 0) first_odd = at + i;
        }
    }
};

// FNV-1a over words.
uint64_t hash_of(const std::byte* bytes, uint64_t count, uint64_t hash) {
    for (uint64_t i = 0; i + 8 <= count; i += 8) {
        uint64_t word;
        std::memcpy(&word, bytes + i, sizeof word);
        hash = (hash ^ word) * 0x100000001b3u;
    }
    for (uint64_t i = count / 8 * 8; i < count; ++i) hash = (hash ^ uint64_t(bytes[i])) * 0x100000001b3u;
    return hash;
}

// Values of a tensor in pieces of whole blocks. False: its type has no decoder of its own.
bool read_values(const StoredTensor& t, Values* seen) {
    const std::optional<Quant> quant = stored_quant(t);
    if (!quant) return false;
    const int64_t count = element_count(t), piece = kValuesAtOnce;  // a multiple of every block
    std::vector<float> values(size_t(std::min(count, piece)));
    for (int64_t at = 0; at < count; at += piece) {
        Weight w;
        w.in = int32_t(std::min(piece, count - at));
        w.out = 1;
        w.quant = *quant;
        w.data = t.data + row_bytes(*quant, at);
        decode_row(w, 0, 0, values.data());
        seen->see(values.data(), w.in, at);
    }
    return true;
}

// FP8 (E4M3) codes that are no numbers.
void read_e4m3(const StoredTensor& t, Values* seen) {
    for (uint64_t i = 0; i < t.bytes; ++i) {
        const float value = e4m3_to_f32(uint8_t(t.data[i]));
        seen->see(&value, 1, int64_t(i));
    }
}

void check_values(const Checkpoint& checkpoint, Sentences* found) {
    int64_t total = 0, done = 0;
    for (const StoredTensor& t : checkpoint.tensors()) total += int64_t(t.bytes);
    ProgressBar bar(STDERR_FILENO, 0.3, "reading");
    std::map<std::pair<uint64_t, uint64_t>, std::string> by_hash;  // bytes, hash -> name
    for (const StoredTensor& t : checkpoint.tensors()) {
        Values values;
        bool read = read_values(t, &values);
        if (t.type == "F8_E4M3") {
            read_e4m3(t, &values);
            read = true;
        }
        if (read && values.odd > 0)
            found->push_back(fmt::format("tensor '{}': {} of {} values are not finite, the first at {}",
                                         t.name, values.odd, element_count(t), values.first_odd));
        else if (read && values.zeros)
            found->push_back(fmt::format("tensor '{}': all {} values are 0", t.name, element_count(t)));
        if (t.bytes >= kHashedBytesMin && !(read && values.zeros)) {
            const auto [other, fresh] =
                by_hash.try_emplace({t.bytes, hash_of(t.data, t.bytes, 0xcbf29ce484222325u)}, t.name);
            if (!fresh)
                found->push_back(fmt::format("tensors '{}' and '{}' hold the same {} bytes", other->second,
                                             t.name, t.bytes));
        }
        done += int64_t(t.bytes);
        bar.show(done, total);
    }
}

// Whether the model, its tokenizer and its template can be used at all.
void check_use(Checkpoint& checkpoint, Sentences* found) {
    const Metadata& m = checkpoint.metadata();
    const auto model = load_model(checkpoint);
    if (!model.ok()) found->push_back(model.error().message);
    const auto tokenizer = Tokenizer::from_metadata(m);
    if (!tokenizer.ok()) {
        found->push_back(tokenizer.error().message);
        return;
    }
    if (tokenizer.value().end_tokens().empty())
        found->push_back("no token ends an answer: neither metadata nor a known name says one");
    if (model.ok() && tokenizer.value().size() > model.value()->shape().vocab)
        found->push_back(fmt::format("the tokenizer has {} tokens, and the model logits for {}",
                                     tokenizer.value().size(), model.value()->shape().vocab));
    if (!m.contains("tokenizer.chat_template")) return;
    const auto chat = ChatTemplate::from_metadata(m);
    if (!chat.ok()) found->push_back(chat.error().message);
}

void check_metadata(const Checkpoint& checkpoint, Sentences* found) {
    const Metadata& m = checkpoint.metadata();
    const auto tokens = m.strings("tokenizer.ggml.tokens");
    const int64_t vocab = tokens.ok() && tokens.value() ? int64_t(tokens.value()->size()) : 0;
    for (const auto& [key, value] : m.entries()) {
        if (!key.starts_with("tokenizer.ggml.") || !key.ends_with("_token_id")) continue;
        const auto id = m.int_or(key, 0, INT64_MIN, INT64_MAX);
        if (id.ok() && (id.value() < 0 || id.value() >= vocab))
            found->push_back(fmt::format("metadata key '{}' is {}, and the vocabulary has {} tokens", key,
                                         id.value(), vocab));
    }
    bool quantised = false;
    for (const StoredTensor& t : checkpoint.tensors()) {
        const std::optional<Quant> q = stored_quant(t);
        quantised = quantised || (q && *q != Quant::f32 && *q != Quant::f16 && *q != Quant::bf16);
    }
    const auto version = m.int_or("general.quantization_version", 2, INT64_MIN, INT64_MAX);
    if (quantised && version.ok() && version.value() != 2)
        found->push_back(
            fmt::format("metadata key 'general.quantization_version' is {}, expected 2", version.value()));
    const auto id = m.int_or("general.file_type", -1, INT64_MIN, INT64_MAX);
    const FileType* type = id.ok() ? find_file_type(id.value()) : nullptr;
    if (!type) return;
    const auto& tensors = checkpoint.tensors();
    if (std::none_of(tensors.begin(), tensors.end(),
                     [&](const StoredTensor& t) { return stored_quant(t) == type->base; }))
        found->push_back(fmt::format("metadata key 'general.file_type' says {}, and no tensor is {}",
                                     type->name, quant_name(type->base)));
}

void check_names(const Checkpoint& checkpoint, Sentences* found) {
    const auto printable = [](const std::string& text) {
        return std::all_of(text.begin(), text.end(), [](char c) { return c > 0x20 && c < 0x7f; });
    };
    for (const StoredTensor& t : checkpoint.tensors())
        if (!printable(t.name))
            found->push_back(
                fmt::format("tensor '{}': the name has characters beside printable ASCII", t.name));
    for (const auto& [key, value] : checkpoint.metadata().entries())
        if (!printable(key))
            found->push_back(fmt::format("metadata key '{}' has characters beside printable ASCII", key));
}

// Bytes between and behind the tensors of each GGUF file, beyond what aligns them.
void check_gaps(const Checkpoint& checkpoint, Sentences* found) {
    const auto alignment = checkpoint.metadata().int_or("general.alignment", 32, 1, INT32_MAX);
    const uint64_t padding = alignment.ok() ? uint64_t(alignment.value()) : 32;
    std::vector<const StoredTensor*> order;
    for (const StoredTensor& t : checkpoint.tensors()) order.push_back(&t);
    std::sort(order.begin(), order.end(), [](const StoredTensor* a, const StoredTensor* b) {
        return std::pair(a->file, a->file_offset) < std::pair(b->file, b->file_offset);
    });
    for (size_t i = 0; i < order.size(); ++i) {
        const StoredTensor& t = *order[i];
        const CheckpointFile& file = checkpoint.files()[size_t(t.file)];
        const bool last = i + 1 == order.size() || order[i + 1]->file != t.file;
        const uint64_t end = t.file_offset + t.bytes, next = last ? file.bytes : order[i + 1]->file_offset;
        if (next - end >= padding)
            found->push_back(fmt::format("{}: {} bytes behind tensor '{}' belong to nothing", file.path,
                                         next - end, t.name));
    }
}

}  // namespace

std::vector<std::string> suspicions(Checkpoint& checkpoint) {
    Sentences found;
    check_use(checkpoint, &found);
    if (checkpoint.container() == Container::gguf) {
        check_metadata(checkpoint, &found);
        check_gaps(checkpoint, &found);
    }
    check_names(checkpoint, &found);
    check_values(checkpoint, &found);
    return found;
}

}  // namespace sparkinfer
