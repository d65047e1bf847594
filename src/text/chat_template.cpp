#include "text/chat_template.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "core/json.h"
#include "text/decoder.h"
#include "text/ffi.h"
#include "text/json_facts.h"

namespace sparkinfer {

struct ChatTemplate::Handle {
    ffi::Template* rust = nullptr;

    explicit Handle(ffi::Template* chat_template) : rust(chat_template) {}
    Handle(const Handle&) = delete;
    Handle& operator=(const Handle&) = delete;
    ~Handle() { ffi::si_template_free(rust); }
};

ChatTemplate::ChatTemplate(std::unique_ptr<Handle> handle, std::string source)
    : handle_(std::move(handle)), source_(std::move(source)) {}
ChatTemplate::ChatTemplate(ChatTemplate&&) noexcept = default;
ChatTemplate& ChatTemplate::operator=(ChatTemplate&&) noexcept = default;
ChatTemplate::~ChatTemplate() = default;

namespace {

// What a template needs to know of the model.
struct Facts {
    std::string source;
    std::vector<std::string> control;  // texts of the control tokens, of a GGUF
    std::string tokenizer_json;        // whose added tokens say the same, of a folder
    SpecialTexts specials;
};

Result<Facts> gguf_facts(const Metadata& metadata) {
    Facts facts;
    TRY(facts.source, metadata.require_string("tokenizer.chat_template"));
    TRY(const auto* tokens, metadata.strings("tokenizer.ggml.tokens"));
    TRY(const auto* types, metadata.ints("tokenizer.ggml.token_type"));
    const size_t count = tokens ? tokens->size() : 0;
    for (size_t i = 0; types && i < std::min(count, types->size()); ++i)
        if ((*types)[i] == 2 || (*types)[i] == 3) facts.control.push_back((*tokens)[i]);
    const std::pair<const char*, const char*> names[] = {{"bos_token", "tokenizer.ggml.bos_token_id"},
                                                         {"eos_token", "tokenizer.ggml.eos_token_id"},
                                                         {"unk_token", "tokenizer.ggml.unknown_token_id"},
                                                         {"pad_token", "tokenizer.ggml.padding_token_id"}};
    for (const auto& [name, key] : names) {
        if (count == 0 || !metadata.contains(key)) continue;
        TRY(const int64_t id, metadata.require_int(key, 0, static_cast<int64_t>(count) - 1));
        facts.specials.emplace(name, (*tokens)[static_cast<size_t>(id)]);
    }
    return facts;
}

Result<Facts> folder_facts(const Metadata& metadata) {
    Facts facts;
    TRY(const std::string config, metadata.string_or("tokenizer_config.json", ""));
    if (metadata.contains("chat_template.jinja")) {
        TRY(facts.source, metadata.require_string("chat_template.jinja"));
    } else {
        TRY(std::optional<std::string> found, config_template(config, metadata.source()));
        if (!found)
            return bad_input(
                "{}: no chat template, expected chat_template.jinja or chat_template in "
                "tokenizer_config.json",
                metadata.source());
        facts.source = std::move(*found);
    }
    TRY(facts.specials, special_texts(config, metadata.source()));
    TRY(facts.tokenizer_json, metadata.string_or("tokenizer.json", ""));
    return facts;
}

}  // namespace

Result<ChatTemplate> ChatTemplate::from_metadata(const Metadata& metadata) {
    const bool folder = metadata.contains("tokenizer.json") || metadata.contains("chat_template.jinja");
    if (!folder && !metadata.contains("tokenizer.chat_template"))
        return bad_input("{}: no chat template, expected the metadata key 'tokenizer.chat_template'",
                         metadata.source());
    TRY(const Facts facts, folder ? folder_facts(metadata) : gguf_facts(metadata));
    std::vector<ffi::Str> control;
    control.reserve(facts.control.size());
    for (const std::string& text : facts.control) control.push_back(ffi::str(text));
    const std::string specials = to_json(facts.specials);
    ffi::Template* rust = nullptr;
    ffi::Bytes error;
    if (int code = ffi::si_template_new(ffi::str(facts.source), control.data(), control.size(),
                                        ffi::str(facts.tokenizer_json), ffi::str(specials), &rust, &error))
        return ffi::take_error(code, error, metadata.source());
    return ChatTemplate(std::make_unique<Handle>(rust), metadata.source());
}

Result<Rendered> ChatTemplate::render(std::string_view messages, const RenderOptions& options) const {
    const ffi::RenderInput input{.messages = ffi::str(messages),
                                 .tools = ffi::str(options.tools),
                                 .kwargs = ffi::str(options.kwargs),
                                 .add_generation_prompt = options.add_generation_prompt,
                                 .has_now = options.now.has_value(),
                                 .now = options.now.value_or(0)};
    ffi::Bytes text;
    ffi::Ranges guarded;
    ffi::Bytes error;
    if (int code = ffi::si_template_render(handle_->rust, &input, &text, &guarded, &error))
        return ffi::take_error(code, error, "");
    Rendered out;
    out.text.assign(text.data, text.size);
    out.guarded.assign(guarded.data, guarded.data + guarded.size);
    ffi::si_text_free_bytes(text);
    ffi::si_text_free_ranges(guarded);
    return out;
}

Result<Rendered> ChatTemplate::render_user(std::string_view text, const RenderOptions& options) const {
    if (const size_t valid = valid_utf8_prefix(text); valid < text.size())
        return bad_input("the text is not valid UTF-8 at byte {}", valid);
    return render(fmt::format(R"([{{"role":"user","content":{}}}])", json_quote(text)), options);
}

}  // namespace sparkinfer
