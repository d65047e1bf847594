#include "server/prompt.h"

#include <algorithm>

#include "text/answer_splitter.h"

namespace sparkinfer {
namespace {

constexpr size_t kNewestTurns = 4;  // whose beginnings are worth a checkpoint

// The source of a model's template, for what can be read off it.
std::string template_source_of(const Metadata& metadata) {
    for (const char* key : {"tokenizer.chat_template", "chat_template.jinja", "tokenizer_config.json"})
        if (const auto text = metadata.string_or(key, ""); text.ok() && !text.value().empty())
            return text.value();
    return "";
}

// [begin, end) of a rendered text with its guards.
Rendered slice(const Rendered& whole, size_t begin, size_t end) {
    Rendered part;
    part.text = whole.text.substr(begin, end - begin);
    for (const ByteRange& r : whole.guarded)
        if (r.begin < end && r.end > begin)
            part.guarded.push_back({std::max(r.begin, begin) - begin, std::min(r.end, end) - begin});
    return part;
}

// What the history of a chat says in a turn, read as an answer is read.
ChatMessage read_turn(std::string_view text, const AnswerFormat& format, const std::vector<ToolSpec>& tools) {
    ChatMessage message;
    message.role = Role::assistant;
    message.reasoning = "";
    AnswerSplitter splitter(format, tools, false);
    std::vector<AnswerPart> parts;
    splitter.push(text, parts);
    splitter.finish(parts);
    for (const AnswerPart& part : parts) switch (part.kind) {
            case AnswerPart::Kind::reasoning: *message.reasoning += part.text; break;
            case AnswerPart::Kind::content: message.content += part.text; break;
            case AnswerPart::Kind::call_started: message.calls.push_back({"", part.text, ""}); break;
            case AnswerPart::Kind::call_arguments: message.calls.back().arguments += part.text; break;
            case AnswerPart::Kind::call_finished: break;
        }
    return message;
}

// The turns of the history that this server sampled, in order; null: not known.
using Known = std::vector<std::shared_ptr<const SampledTurn>>;

// Finds them, and gives back to the history the reasoning that the client left out.
Known known_turns(ChatRequest& request, const SampledTurns& turns) {
    Known known;
    for (ChatMessage& message : request.messages) {
        if (message.role != Role::assistant) continue;
        known.push_back(turns.find(message, request.cache_salt));
        if (known.back() && !message.reasoning && !known.back()->reasoning.empty())
            message.reasoning = known.back()->reasoning;
    }
    return known;
}

// Where a turn begins: the header's first token, a control token, outside of message text.
std::vector<int32_t> turn_starts(const std::vector<TokenId>& tokens, TokenId first) {
    std::vector<int32_t> starts;
    for (size_t i = 1; i < tokens.size(); ++i)
        if (tokens[i] == first) starts.push_back(int32_t(i));
    return starts;
}

}  // namespace

Result<PromptMaker> PromptMaker::make(const Metadata& metadata, const Tokenizer& tokenizer) {
    PromptMaker maker(tokenizer);
    maker.traits_.source = template_source_of(metadata);
    if (maker.traits_.source.empty()) return maker;
    auto chat_template = ChatTemplate::from_metadata(metadata);
    if (!chat_template.ok()) {
        // A folder's configuration file need not hold a template.
        if (metadata.contains("tokenizer.chat_template") || metadata.contains("chat_template.jinja"))
            return chat_template.error();
        maker.traits_.source.clear();
        return maker;
    }
    maker.template_ = std::move(chat_template).value();
    maker.traits_.habits = template_habits(*maker.template_);
    maker.marks_ = find_turn_marks(*maker.template_);
    maker.format_ = answer_format(maker.traits_.source);
    return maker;
}

ApiResult<Rendered> PromptMaker::render(const ChatRequest& request, TemplateInput& input) const {
    if (!template_)
        return bad_request("messages",
                           "this model has no chat template, expected a request of /v1/completions");
    if (request.messages.empty()) return bad_request("messages", "the list is empty, expected a message");
    TRY(input, template_input(request, traits_));
    RenderOptions options;
    options.tools = input.tools;
    options.kwargs = input.kwargs;
    const ChatMessage& last = request.messages.back();
    if (request.continue_final_message && last.role != Role::assistant)
        return bad_request("continue_final_message",
                           "the last message is not the assistant's, expected one to go on with");
    options.add_generation_prompt = request.add_generation_prompt && !request.continue_final_message;
    auto rendered = template_->render(input.messages, options);
    if (!rendered.ok())
        return bad_request("messages", "the model's chat template refuses: {}", rendered.error().message);
    Rendered text = std::move(rendered).value();
    if (!request.continue_final_message) return text;
    const std::vector<TurnRange> turns = find_turns(text, marks_);
    if (turns.empty() || turns.back().open)
        return bad_request("continue_final_message", "this model's chat template does not allow it");
    return slice(text, 0, turns.back().end);
}

ApiResult<std::string> PromptMaker::render(const ChatRequest& request) const {
    TemplateInput input;
    TRY(Rendered text, render(request, input));
    return std::move(text.text);
}

ApiResult<ChatPrompt> PromptMaker::chat(ChatRequest request, const SampledTurns& turns) const {
    const Known known = known_turns(request, turns);
    TemplateInput input;
    TRY(const Rendered text, render(request, input));
    std::vector<TurnRange> places = find_turns(text, marks_);
    ChatPrompt prompt;
    prompt.notices = std::move(input.notices);
    const bool opens = !places.empty() && places.back().open;
    if (opens) {
        prompt.tail = text.text.substr(places.back().begin);
        places.pop_back();
    }
    if (places.size() != known.size()) places.clear();  // the template drew its turns otherwise
    const auto encode = [&](const Rendered& part) -> ApiResult<void> {
        const auto ids = tokenizer_->encode(part);
        if (!ids.ok()) return bad_request("messages", "{}", ids.error().message);
        prompt.tokens.insert(prompt.tokens.end(), ids.value().begin(), ids.value().end());
        return {};
    };
    size_t from = 0;
    for (size_t i = 0; i < places.size(); ++i) {
        if (!known[i]) continue;
        const SampledTurn& turn = *known[i];
        const auto [begin, end, open] = places[i];
        const ChatMessage said =
            read_turn(std::string_view(text.text).substr(begin, end - begin), format_, request.tools);
        if (!repeats(said, turn)) continue;  // the template left something out
        Rendered piece = slice(text, from, begin);
        piece.text += turn.prompt_tail;
        TRY_VOID(encode(piece));
        prompt.tokens.insert(prompt.tokens.end(), turn.tokens.begin(), turn.tokens.end());
        from = end;
        ++prompt.replayed;
    }
    TRY_VOID(encode(slice(text, from, text.text.size())));
    if (prompt.tokens.empty()) return bad_request("messages", "the prompt has no tokens");
    if (const auto mark = marks_.header.empty() ? std::nullopt : header_token()) {
        const std::vector<int32_t> starts = turn_starts(prompt.tokens, *mark);
        // Behind the system turn with its tools, where new chats branch off; and the newest turns.
        for (size_t i = 0; i < starts.size(); ++i)
            if (i == 0 || i + kNewestTurns >= starts.size()) prompt.checkpoints.push_back(starts[i]);
    }
    prompt.text = text.text;
    return prompt;
}

std::optional<TokenId> PromptMaker::header_token() const {
    const auto ids = tokenizer_->encode(marks_.header, Tokenizer::Specials::parse, false);
    if (!ids.ok() || ids.value().empty() || tokenizer_->kind(ids.value()[0]) != TokenKind::control)
        return std::nullopt;
    return ids.value()[0];
}

}  // namespace sparkinfer
