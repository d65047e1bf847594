// chat_commands.cpp — what the words after a slash do in a chat.
#include <algorithm>
#include <filesystem>

#include "cli/chat.h"
#include "cli/chat_settings.h"
#include "cli/nearest.h"
#include "cli/option_values.h"
#include "cli/streams.h"
#include "core/env.h"

namespace sparkinfer {

namespace {

namespace fs = std::filesystem;

std::string_view trimmed(std::string_view text) {
    const size_t begin = text.find_first_not_of(" \t\n");
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(" \t\n") - begin + 1);
}

// The first word, and what follows it.
std::pair<std::string, std::string> word_and_rest(std::string_view text) {
    const size_t end = std::min(text.find_first_of(" \t\n"), text.size());
    return {std::string(text.substr(0, end)), std::string(trimmed(text.substr(end)))};
}

// "3" → 3; nothing → `unsaid`.
Result<size_t> parse_count(const char* command, const std::string& text, size_t unsaid) {
    if (text.empty()) return unsaid;
    TRY(const int64_t count, parse_int(command, text, 1, 1'000'000));
    return size_t(count);
}

std::string exchanges(size_t count) { return fmt::format("{} exchange{}", count, count == 1 ? "" : "s"); }

// "~/x" as a shell has it.
std::string with_home(const std::string& path) {
    const auto home = env_home();
    return home && path.starts_with("~/") ? *home + path.substr(1) : path;
}

}  // namespace

struct ChatCommands {
    using Done = Result<void>;

    static Done help(Chat& chat, const std::string&);

    static Done system(Chat& chat, const std::string& text) {
        Conversation& c = chat.conversation_;
        if (text.empty()) {
            chat.note(c.system.empty() ? "no system prompt" : "system prompt: " + c.system);
            return {};
        }
        c.system = text == "none" ? "" : text;
        chat.note(c.messages.empty()
                      ? "the system prompt is set"
                      : "the system prompt is changed; the conversation behind it is read again");
        return {};
    }

    static Done think(Chat& chat, const std::string& word) {
        if (!chat.service_.card().reasoning)
            return usage_error("/think: the model's chat template knows no thinking");
        if (!word.empty()) {
            TRY(chat.thinking_, parse_thinking(word));
        }
        chat.note("thinking: " + thinking_text(chat.thinking_));
        return {};
    }

    static Done regenerate(Chat& chat, const std::string&) {
        if (chat.conversation_.messages.empty()) return usage_error("/regen: there is no answer yet");
        const Conversation before = chat.conversation_;
        const std::string message = before.messages[before.messages.size() - 2].content;
        chat.conversation_.drop_newest(1);
        const Done said = chat.say(message);
        if (!said.ok()) chat.conversation_ = before;
        return said;
    }

    static Done undo(Chat& chat, const std::string& text) {
        TRY(const size_t count, parse_count("/undo", text, 1));
        const size_t dropped = chat.conversation_.drop_newest(count);
        if (dropped == 0) return usage_error("/undo: the conversation is empty");
        chat.note(fmt::format("{} dropped, {} left", exchanges(dropped), chat.conversation_.exchanges()));
        return {};
    }

    static Done forget(Chat& chat, const std::string& text) {
        Conversation& c = chat.conversation_;
        if (c.messages.empty()) return usage_error("/forget: the conversation is empty");
        size_t dropped = 0;
        if (!text.empty()) {
            TRY(const size_t count, parse_count("/forget", text, 1));
            dropped = c.drop_oldest(count);
        } else {
            for (int64_t left = INT64_MAX; left > chat.service_.card().context / 2 && !c.messages.empty();) {
                dropped += c.drop_oldest(1);
                TRY(left, chat.tokens());
            }
        }
        chat.note(fmt::format("the oldest {} dropped, {} left; they are read again with the next message",
                              exchanges(dropped), c.exchanges()));
        return {};
    }

    static Done clear(Chat& chat, const std::string&) {
        chat.conversation_.messages.clear();
        chat.note("a new conversation");
        return {};
    }

    static Done save(Chat& chat, const std::string& path) {
        if (path.empty()) return usage_error("/save: no file is named, expected /save FILE");
        std::error_code missing;
        const std::string file = with_home(path);
        if (const auto bytes = fs::file_size(file, missing); !missing && bytes > 0)
            if (const auto old = load_conversation(file); !old.ok() && fs::is_regular_file(file, missing))
                return bad_input("/save: {} is there and holds no conversation, so it is not replaced", path);
        TRY_VOID(save_conversation(chat.conversation_, chat.service_.card().id, file));
        chat.note(fmt::format("{} saved to {}", exchanges(chat.conversation_.exchanges()), path));
        return {};
    }

    static Done load(Chat& chat, const std::string& path) {
        if (path.empty()) return usage_error("/load: no file is named, expected /load FILE");
        TRY(chat.conversation_, load_conversation(with_home(path)));
        chat.note(fmt::format("{} loaded from {}", exchanges(chat.conversation_.exchanges()), path));
        return {};
    }

    static Done tokens(Chat& chat, const std::string&) {
        TRY(const int64_t tokens, chat.tokens());
        const int32_t context = chat.service_.card().context;
        std::string text = fmt::format("context: {} of {} tokens ({:.0f} %)", tokens, context,
                                       100.0 * double(tokens) / double(context));
        const SpokenAnswer& last = chat.counted_;
        const Usage& usage = last.usage;
        if (usage.prompt_tokens > 0)
            text += fmt::format(
                "\nlast answer: {} tokens of its prompt were kept, {} read in {:.2f} s; {} generated{}",
                usage.cached_tokens, usage.prompt_tokens - usage.cached_tokens, last.first_s,
                usage.completion_tokens,
                last.generation_s > 0 && usage.completion_tokens > 1
                    ? fmt::format(", {:.1f} tok/s", double(usage.completion_tokens - 1) / last.generation_s)
                    : "");
        chat.note(text);
        return {};
    }

    static Done set(Chat& chat, const std::string& text) {
        const auto [name, value] = word_and_rest(text);
        if (!name.empty() && value.empty())
            return usage_error("/set: no value for '{}', expected /set NAME VALUE", name);
        if (!name.empty()) TRY_VOID(change_setting(chat.params_, name, value));
        std::string all = settings_text(chat.params_);
        if (name.empty()) {
            all.pop_back();
            chat.note(all);
        }
        return {};
    }

    static Done quit(Chat& chat, const std::string&) {
        chat.quit_ = true;
        return {};
    }
};

namespace {

struct ChatCommand {
    const char* name;
    const char* argument;
    const char* meaning;
    Result<void> (*run)(Chat& chat, const std::string& argument);
};
constexpr ChatCommand kChatCommands[] = {
    {"/system", "TEXT", "set the system prompt; alone: show it; none: without", ChatCommands::system},
    {"/think", "HOW", "reason first: on, off, low, medium, high, N (tokens)", ChatCommands::think},
    {"/regen", "", "answer the last message again", ChatCommands::regenerate},
    {"/undo", "[N]", "drop the newest exchange, or N", ChatCommands::undo},
    {"/forget", "[N]", "drop the N oldest; alone: until half of the context is free", ChatCommands::forget},
    {"/clear", "", "begin a new conversation", ChatCommands::clear},
    {"/save", "FILE", "write the conversation to a file", ChatCommands::save},
    {"/load", "FILE", "go on with a saved conversation", ChatCommands::load},
    {"/tokens", "", "how full the context is, what the last answer took", ChatCommands::tokens},
    {"/set", "NAME VALUE", "change how answers are generated; alone: show it", ChatCommands::set},
    {"/help", "", "this list", ChatCommands::help},
    {"/quit", "", "end; so does Ctrl-D", ChatCommands::quit},
};

// Further names that other programs have taught people.
constexpr std::pair<const char*, const char*> kAliases[] = {
    {"/exit", "/quit"}, {"/bye", "/quit"}, {"/?", "/help"}, {"/regenerate", "/regen"}, {"/new", "/clear"}};

}  // namespace

Result<void> ChatCommands::help(Chat& chat, const std::string&) {
    std::string text;
    for (const ChatCommand& row : kChatCommands)
        text += fmt::format("{:<17} {}\n", fmt::format("{} {}", row.name, row.argument), row.meaning);
    text +=
        "Enter sends; Alt-Enter, a \\ before Enter or an open \"\"\" begin a new line.\n"
        "Tab completes, Ctrl-R searches, Ctrl-C stops an answer, a second one quits.\n"
        "A message that begins with / is written with //.";
    chat.note(text);
    return {};
}

Result<void> Chat::command(std::string_view text) {
    auto [name, argument] = word_and_rest(trimmed(text));
    for (const auto& [alias, meant] : kAliases)
        if (name == alias) name = meant;
    std::vector<std::string> known;
    for (const ChatCommand& row : kChatCommands) {
        if (name == row.name) return row.run(*this, argument);
        known.emplace_back(row.name);
    }
    const std::string near = nearest_word(name, known);
    return usage_error("'{}' is no command{}; /help lists them, // begins a message with /", name,
                       near.empty() ? "" : fmt::format(", did you mean {}?", near));
}

std::vector<std::string> complete_chat_command(const std::string& text) {
    std::vector<std::string> found;
    if (!text.starts_with('/')) return found;
    const size_t space = text.find(' ');
    const auto offer = [&](const std::string& whole) {
        if (whole.starts_with(text)) found.push_back(whole);
    };
    if (space == std::string::npos) {
        for (const ChatCommand& row : kChatCommands) offer(row.name + std::string(*row.argument ? " " : ""));
        return found;
    }
    const std::string name = text.substr(0, space), word = text.substr(space + 1);
    if (name == "/set")
        for (const std::string& setting : setting_names()) offer("/set " + setting + " ");
    if (name == "/think")
        for (const char* how : {"on", "off", "low", "medium", "high", "default"})
            offer("/think " + std::string(how));
    if (name != "/save" && name != "/load") return found;
    const size_t slash = word.rfind('/');
    const std::string folder = slash == std::string::npos ? "" : word.substr(0, slash + 1);
    std::error_code trouble;
    for (const auto& entry : fs::directory_iterator(folder.empty() ? "." : with_home(folder), trouble)) {
        const std::string file = entry.path().filename().string();
        const bool is_folder = entry.is_directory(trouble);
        if (utf8_error_offset(file) != std::string::npos) continue;
        offer(fmt::format("{} {}{}{}", name, folder, file, is_folder ? "/" : ""));
    }
    std::sort(found.begin(), found.end());
    return found;
}

}  // namespace sparkinfer
