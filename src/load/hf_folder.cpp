#include "load/hf_folder.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/file.h"
#include "core/json.h"

namespace sparkinfer {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kTextBytesMax = 256 << 20;  // the largest known tokenizer.json has 20 MB
constexpr const char* kIndexName = "model.safetensors.index.json";
constexpr const char* kTexts[] = {"generation_config.json", "tokenizer.json", "tokenizer_config.json",
                                  "chat_template.jinja", "hf_quant_config.json"};

// What cannot be looked at counts as there: opening it then says why.
bool exists(const std::string& path) {
    std::error_code trouble;
    return fs::exists(path, trouble) || trouble;
}

std::string joined(const std::string& folder, std::string_view name) {
    return (fs::path(folder) / name).string();
}

// A scalar as metadata; false for null, arrays and objects.
bool scalar_value(const Json& v, MetadataValue* out) {
    if (const auto* b = v.if_bool())
        *out = *b;
    else if (const auto* i = v.if_int64())
        *out = *i;
    else if (const auto* u = v.if_uint64())
        *out = *u;
    else if (const auto* d = v.if_double())
        *out = *d;
    else if (const auto* s = v.if_string())
        *out = std::string(s->data(), s->size());
    else
        return false;
    return true;
}

// An array of one kind of scalar (integers and other numbers together are numbers); false for anything else.
bool array_value(const JsonArray& array, MetadataValue* out) {
    bool bools = true, ints = true, numbers = true, strings = true;
    for (const Json& v : array) {
        int64_t whole = 0;
        bools &= v.is_bool();
        ints &= json_is_int(v, &whole);
        numbers &= v.is_number();
        strings &= v.is_string();
    }
    if (ints) {
        std::vector<int64_t> values;
        for (const Json& v : array) values.push_back(v.to_number<int64_t>());
        *out = std::move(values);
    } else if (numbers) {
        std::vector<double> values;
        for (const Json& v : array) values.push_back(v.to_number<double>());
        *out = std::move(values);
    } else if (bools) {
        std::vector<bool> values;
        for (const Json& v : array) values.push_back(v.get_bool());
        *out = std::move(values);
    } else if (strings) {
        std::vector<std::string> values;
        for (const Json& v : array) values.emplace_back(v.get_string().data(), v.get_string().size());
        *out = std::move(values);
    } else {
        return false;
    }
    return true;
}

Result<void> flatten(const std::string& prefix, const JsonObject& object, Metadata* metadata) {
    for (const auto& [name, v] : object) {
        const std::string key = prefix + "." + std::string(name.data(), name.size());
        if (const JsonObject* inner = v.if_object()) {
            TRY_VOID(flatten(key, *inner, metadata));
            continue;
        }
        MetadataValue value;
        const bool plain = v.is_array() ? array_value(v.get_array(), &value) : scalar_value(v, &value);
        if (plain && !metadata->insert(key, std::move(value)))
            return bad_input("{}: config.json states '{}' twice", metadata->source(), key);
    }
    return {};
}

// A file name of the index must stay inside the folder.
bool is_plain_name(std::string_view name) {
    return !name.empty() && name != "." && name != ".." && name.find('/') == std::string_view::npos &&
           name.find('\0') == std::string_view::npos;
}

Result<TensorFiles> read_index(const std::string& folder) {
    const std::string path = joined(folder, kIndexName);
    TRY(const std::string text, read_text_file(path, kTextBytesMax));
    TRY(const Json index, parse_json(text, path, {.refuse_duplicate_keys = true}));
    TRY(const JsonObject* top, json_object(index, path));
    const Json* map_value = json_find(*top, "weight_map");
    if (!map_value) return bad_input("{}: the key 'weight_map' is missing", path);
    TRY(const JsonObject* map, json_object(*map_value, path, "'weight_map'"));
    TensorFiles files;
    files.indexed = true;
    std::set<std::string> names;
    for (const auto& [tensor, v] : *map) {
        const std::string name(tensor.data(), tensor.size());
        const auto* file = v.if_string();
        if (!file || !is_plain_name({file->data(), file->size()}))
            return bad_input("{}: tensor '{}' is in {}, expected the name of a file in this folder", path,
                             name, to_json(v).substr(0, 100));
        files.holder[name] = std::string(file->data(), file->size());
        names.insert(files.holder[name]);
    }
    if (names.empty()) return bad_input("{}: 'weight_map' is empty", path);
    for (const std::string& name : names) {
        if (exists(joined(folder, name))) continue;
        const auto lost = std::find_if(files.holder.begin(), files.holder.end(),
                                       [&](const auto& entry) { return entry.second == name; });
        return bad_input("{}: the file '{}' is missing, which {} says holds '{}'", folder, name, kIndexName,
                         lost->first);
    }
    files.names.assign(names.begin(), names.end());
    return files;
}

}  // namespace

Result<Metadata> read_folder_metadata(const std::string& folder) {
    const std::string path = joined(folder, "config.json");
    if (!exists(path))
        return bad_input(
            "{}: is no model folder: config.json is missing (expected a GGUF file, or a folder with "
            "config.json and safetensors files)",
            folder);
    Metadata metadata(folder);
    TRY(std::string text, read_text_file(path, kTextBytesMax));
    TRY(const Json config, parse_json(text, path));
    TRY(const JsonObject* object, json_object(config, path));
    metadata.insert("config.json", std::move(text));
    TRY_VOID(flatten("config", *object, &metadata));
    for (const char* name : kTexts) {
        if (!exists(joined(folder, name))) continue;
        TRY(std::string content, read_text_file(joined(folder, name), kTextBytesMax));
        metadata.insert(name, std::move(content));
    }
    return metadata;
}

Result<TensorFiles> find_tensor_files(const std::string& folder) {
    if (exists(joined(folder, kIndexName))) return read_index(folder);
    TensorFiles files;
    std::error_code trouble;
    for (fs::directory_iterator it(folder, trouble), end; !trouble && it != end; it.increment(trouble))
        if (it->path().extension() == ".safetensors") files.names.push_back(it->path().filename().string());
    if (trouble) return bad_input("{}: cannot list the folder: {}", folder, trouble.message());
    if (files.names.empty())
        return bad_input("{}: is no model folder: it has config.json but no safetensors files", folder);
    std::sort(files.names.begin(), files.names.end());
    return files;
}

}  // namespace sparkinfer
