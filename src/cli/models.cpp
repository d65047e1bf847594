// models.cpp — `sparkinfer models`: what is on disk, and whether this program runs it.
#include "cli/commands.h"
#include "cli/model_store.h"
#include "cli/terminal.h"
#include "core/json.h"
#include "core/log.h"

namespace sparkinfer {

namespace {

constexpr int kDepth = 8;  // folders below one that is named

std::string size_text(int64_t bytes) {
    return bytes < 10'000'000'000 ? fmt::format("{:.1f} MB", double(bytes) * 1e-6)
                                  : fmt::format("{:.1f} GB", double(bytes) * 1e-9);
}

std::string count_text(int64_t count) {
    return count < 1'000'000'000 ? fmt::format("{:.0f}M", double(count) * 1e-6)
                                 : fmt::format("{:.1f}B", double(count) * 1e-9);
}

std::string row(const FoundModel& model) {
    const std::string path = terminal_safe(model.path);
    if (!model.facts) return fmt::format("{}\n  not run: {}\n", path, terminal_safe(model.trouble));
    const ModelFacts& facts = *model.facts;
    const auto architecture = facts.metadata.string_or("general.architecture", "");
    std::string text = fmt::format("{}\n  {}, {} weights, {}, context {}", path, size_text(facts.file_bytes),
                                   count_text(facts.tensor_elements), facts.main_type, facts.shape.context);
    if (architecture.ok() && !architecture.value().empty())
        text += ", " + terminal_safe(architecture.value());
    return text + "\n";
}

Json model_json(const FoundModel& model) {
    JsonObject object;
    object["path"] = model.path;
    object["runs"] = model.facts.has_value();
    if (!model.facts) {
        object["trouble"] = model.trouble;
        return object;
    }
    object["bytes"] = model.facts->file_bytes;
    object["weights"] = model.facts->tensor_elements;
    object["type"] = model.facts->main_type;
    object["context"] = int64_t(model.facts->shape.context);
    return object;
}

}  // namespace

Result<int> run_command(const ModelsOptions& o, Session& session) {
    std::vector<FoundModel> found;
    if (o.folders.empty()) found = find_usual_models();
    for (const std::string& folder : o.folders) {
        TRY(std::vector<FoundModel> more, find_models(folder, kDepth));
        for (FoundModel& model : more) found.push_back(std::move(model));
    }
    if (o.json) {
        JsonArray list;
        for (const FoundModel& model : found) list.emplace_back(model_json(model));
        JsonObject object;
        object["models"] = std::move(list);
        TRY_VOID(session.out.write(to_json(Json(std::move(object))) + "\n"));
        return 0;
    }
    std::string text;
    for (const FoundModel& model : found) text += row(model);
    TRY_VOID(session.out.write(text));
    if (found.empty())
        log_info("no models were found; `sparkinfer pull` lists those that can be obtained by name");
    return 0;
}

}  // namespace sparkinfer
