// inspect.cpp — `sparkinfer inspect`: what is in a model's files. Reads headers only;
// --strict the weights too.
#include <algorithm>

#include "cli/commands.h"
#include "cli/inspect_strict.h"
#include "cli/model_facts.h"
#include "core/json.h"

namespace sparkinfer {

namespace {

constexpr size_t kShownValues = 6;       // of an array
constexpr size_t kShownCharacters = 72;  // of a string
constexpr size_t kJsonValues = 64;  // of an array in --json; longer ones are abbreviated, with their length

// "1234567" -> "1,234,567"
std::string grouped(int64_t n) {
    std::string text = std::to_string(n);
    for (int64_t at = int64_t(text.size()) - 3; at > 0; at -= 3) text.insert(size_t(at), 1, ',');
    return text;
}

std::string size_text(int64_t bytes) {
    return fmt::format("{} bytes ({:.2f} GiB)", grouped(bytes), double(bytes) / (1 << 30));
}

// A name from the file, without what a terminal would obey.
std::string printable(std::string name) {
    for (char& c : name)
        if (uint8_t(c) < 0x20 || c == 0x7f) c = '?';
    return name;
}

// A string on one line, cut at a character's end.
std::string shown(const std::string& text) {
    if (text.size() <= kShownCharacters) return json_quote(text);
    size_t cut = kShownCharacters;
    while (cut > 0 && (uint8_t(text[cut]) & 0xc0) == 0x80) --cut;
    return fmt::format("{}… ({} bytes)", json_quote(text.substr(0, cut)), grouped(int64_t(text.size())));
}
std::string shown(bool value) { return value ? "true" : "false"; }
std::string shown(int64_t value) { return std::to_string(value); }
std::string shown(uint64_t value) { return std::to_string(value); }
std::string shown(double value) { return fmt::format("{}", value); }
template <class T>
std::string shown(const std::vector<T>& values) {
    std::string text = "[";
    for (size_t i = 0; i < std::min(values.size(), kShownValues); ++i) {
        const T& value = values[i];
        text += fmt::format("{}{}", i ? ", " : "", shown(value));
    }
    return text + (values.size() > kShownValues
                       ? fmt::format(", … {} in all]", grouped(int64_t(values.size())))
                       : "]");
}

Json value_json(const std::string& text) { return Json(text); }
Json value_json(bool value) { return Json(value); }
Json value_json(int64_t value) { return Json(value); }
Json value_json(uint64_t value) { return Json(value); }
Json value_json(double value) { return Json(value); }
// A long array becomes {"length", "first"}.
template <class T>
Json value_json(const std::vector<T>& values) {
    JsonArray first;
    for (size_t i = 0; i < values.size() && i < kJsonValues; ++i) {
        const T& value = values[i];
        first.push_back(value_json(value));
    }
    if (values.size() <= kJsonValues) return first;
    JsonObject object;
    object["length"] = int64_t(values.size());
    object["first"] = std::move(first);
    return object;
}

std::string shape_text(const StoredTensor& tensor) {
    std::string text;
    for (const int64_t extent : tensor.shape) text += fmt::format("{}{}", text.empty() ? "" : " × ", extent);
    return text.empty() ? "scalar" : text;
}

struct Totals {
    int64_t file_bytes = 0, tensor_bytes = 0, elements = 0;
};
Totals totals(const Checkpoint& checkpoint, const std::vector<TypeCount>& census) {
    Totals t;
    for (const CheckpointFile& file : checkpoint.files()) t.file_bytes += int64_t(file.bytes);
    for (const TypeCount& count : census) {
        t.tensor_bytes += count.bytes;
        t.elements += count.elements;
    }
    return t;
}

const char* container_name(const Checkpoint& checkpoint) {
    return checkpoint.container() == Container::gguf ? "GGUF" : "safetensors";
}

std::string report(const Checkpoint& checkpoint) {
    const std::vector<TypeCount> census = quant_census(checkpoint.tensors());
    const Totals t = totals(checkpoint, census);
    std::string text = fmt::format("{}: {}, {} file{}, {}\n", printable(checkpoint.path()),
                                   container_name(checkpoint), checkpoint.files().size(),
                                   checkpoint.files().size() == 1 ? "" : "s", size_text(t.file_bytes));
    if (checkpoint.files().size() > 1)
        for (const CheckpointFile& file : checkpoint.files())
            text += fmt::format("  {}  {}\n", printable(file.path), grouped(int64_t(file.bytes)));
    text += fmt::format("\nMetadata ({} keys)\n", checkpoint.metadata().entries().size());
    for (const auto& [key, value] : checkpoint.metadata().entries())
        text += fmt::format("  {} = {}\n", printable(key),
                            std::visit([](const auto& v) { return shown(v); }, value));
    text += fmt::format("\nTensors ({}; shapes outermost first)\n", checkpoint.tensors().size());
    size_t width = 0;
    for (const StoredTensor& tensor : checkpoint.tensors()) width = std::max(width, tensor.name.size());
    for (const StoredTensor& tensor : checkpoint.tensors())
        text +=
            fmt::format("  {:<{}} {:<8} {:<22} {:>15}\n", printable(tensor.name), std::min<size_t>(width, 80),
                        tensor.type, shape_text(tensor), grouped(int64_t(tensor.bytes)));
    text += "\nTypes\n";
    for (const TypeCount& c : census)
        text += fmt::format("  {:<10} {:>5} tensors {:>18} weights {:>18} bytes {:>6.2f} bits a weight\n",
                            c.type, c.tensors, grouped(c.elements), grouped(c.bytes),
                            c.elements ? 8.0 * double(c.bytes) / double(c.elements) : 0.0);
    text += fmt::format("\nTotal  {} weights in {}\n", grouped(t.elements), size_text(t.tensor_bytes));
    return text;
}

Json report_json(const Checkpoint& checkpoint) {
    const std::vector<TypeCount> census = quant_census(checkpoint.tensors());
    const Totals t = totals(checkpoint, census);
    JsonArray files, tensors, types;
    for (const CheckpointFile& file : checkpoint.files())
        files.push_back(JsonObject{{"path", file.path}, {"bytes", int64_t(file.bytes)}});
    JsonObject metadata;
    for (const auto& [key, value] : checkpoint.metadata().entries())
        metadata[key] = std::visit([](const auto& v) { return value_json(v); }, value);
    for (const StoredTensor& tensor : checkpoint.tensors()) {
        JsonArray shape;
        for (const int64_t extent : tensor.shape) shape.emplace_back(extent);
        tensors.push_back(JsonObject{{"name", tensor.name},
                                     {"type", tensor.type},
                                     {"shape", std::move(shape)},
                                     {"bytes", int64_t(tensor.bytes)},
                                     {"file", tensor.file},
                                     {"offset", int64_t(tensor.file_offset)}});
    }
    for (const TypeCount& c : census)
        types.push_back(JsonObject{
            {"type", c.type}, {"tensors", c.tensors}, {"weights", c.elements}, {"bytes", c.bytes}});
    return JsonObject{{"path", checkpoint.path()},     {"container", container_name(checkpoint)},
                      {"files", std::move(files)},     {"metadata", std::move(metadata)},
                      {"tensors", std::move(tensors)}, {"types", std::move(types)},
                      {"weights", t.elements},         {"tensor_bytes", t.tensor_bytes},
                      {"file_bytes", t.file_bytes}};
}

// Exit code 1 when something is suspicious.
Result<int> report_strictly(const InspectOptions& o, Checkpoint& checkpoint, StandardOutput& out) {
    const std::vector<std::string> found = suspicions(checkpoint);
    std::string text;
    if (o.json) {
        JsonArray list;
        for (const std::string& sentence : found) list.emplace_back(sentence);
        text =
            to_json_pretty(JsonObject{{"path", checkpoint.path()}, {"suspicious", std::move(list)}}) + "\n";
    } else {
        for (const std::string& sentence : found) text += printable(sentence) + "\n";
        if (found.empty())
            text =
                fmt::format("{}: nothing suspicious in {} tensors and {} metadata keys\n", checkpoint.path(),
                            checkpoint.tensors().size(), checkpoint.metadata().entries().size());
    }
    TRY_VOID(out.write(text));
    return found.empty() ? 0 : 1;
}

}  // namespace

Result<int> run_command(const InspectOptions& o, Session& session) {
    TRY(const std::unique_ptr<Checkpoint> checkpoint, open_checkpoint(o.file));
    if (o.strict) return report_strictly(o, *checkpoint, session.out);
    TRY_VOID(
        session.out.write(o.json ? to_json_pretty(report_json(*checkpoint)) + "\n" : report(*checkpoint)));
    return 0;
}

}  // namespace sparkinfer
