#include "cli/served_model.h"

#include <cctype>
#include <filesystem>

#include "cli/machine.h"
#include "cli/model_facts.h"
#include "core/log.h"
#include "server/model_service.h"

namespace sparkinfer {

std::string model_id(const std::string& path) {
    std::filesystem::path file(path);
    if (!file.has_filename()) file = file.parent_path();  // "folder/"
    std::string name = file.filename().string();
    if (name.size() > 5 && name.substr(name.size() - 5) == ".gguf") name.resize(name.size() - 5);
    // "-00001-of-00002"
    const size_t piece = name.size() > 15 ? name.size() - 15 : std::string::npos;
    if (piece != std::string::npos && name[piece] == '-' && name.substr(piece + 6, 4) == "-of-" &&
        std::isdigit(uint8_t(name[piece + 1])) && std::isdigit(uint8_t(name.back())))
        name.resize(piece);
    return name;
}

Result<std::unique_ptr<ServedModel>> ServedModel::open(const ServeOptions& o, const Session& session,
                                                       const Sizes& sizes) {
    auto model = std::make_unique<ServedModel>();
    TRY(const ModelFacts facts, model_facts(o.model));
    TRY(model->backend, session.backend(o.backend, o.threads, o.stored));
    const BackendInfo& info = model->backend->info();

    ServeMachine machine;
    machine.host_memory = available_memory();
    machine.on_host = info.host_memory;
    machine.memory = info.host_memory ? machine.host_memory : info.memory_bytes;
    machine.weights = facts.tensor_bytes;
    machine.bytes_per_token = kv_bytes_per_token(facts.shape, info.kv_type);
    machine.trained_context = facts.shape.context;
    TRY(const EngineOptions options, sizes(o, machine));
    TRY(std::unique_ptr<Engine> engine, session.engine(o.model, *model->backend, options));
    model->page_bytes = kPageTokens * machine.bytes_per_token;

    if (o.cache_file && std::filesystem::exists(*o.cache_file)) {
        TRY_VOID(engine->load_cache(*o.cache_file));
        log_info("{}: read what requests have in common", *o.cache_file);
    }
    model->engine = std::make_unique<EngineThread>(std::move(engine));
    ServiceOptions service;
    service.id = model_id(o.model);
    service.aliases = o.aliases;
    service.trained_context = facts.shape.context;
    service.vocab = facts.shape.vocab;
    if (o.replay_memory) service.replay_bytes = size_t(*o.replay_memory);
    TRY(service.sampling, resolve_sampling({}, facts.metadata));
    TRY(model->service, ModelService::make(*model->engine, std::move(service)));
    return model;
}

}  // namespace sparkinfer
