// manual.cpp — `sparkinfer manual`: the help of all commands as a man page or as Markdown, made from the
// table that --help prints.
#include <algorithm>
#include <span>

#include "cli/commands.h"

namespace sparkinfer {

namespace {

struct Fact {
    const char* name;
    const char* text;
};
constexpr Fact kExitCodes[] = {
    {"0", "done"},
    {"1", "diff found a difference, inspect --strict something suspicious"},
    {"2", "usage: a flag or a value is wrong"},
    {"3", "a file or an input is bad"},
    {"4", "out of resources: memory, disk, context, a device or a server that is not there"},
    {"5", "device or internal: a device or this program has failed"},
    {"130", "ended by Ctrl-C, SIGINT or SIGTERM"},
};
constexpr Fact kEnvironment[] = {
    {"NO_COLOR", "set and not empty: no colours"},
    {"TERM", "dumb: no colours, and a chat without line editing"},
    {"HOME, XDG_CONFIG_HOME, XDG_DATA_HOME, XDG_STATE_HOME",
     "where configurations of clients, pulled models and the history of chats lie"},
};
constexpr Fact kFiles[] = {
    {"~/.local/share/sparkinfer/models", "what pull obtains; commands find models there by name"},
    {"~/.local/state/sparkinfer/chat_history",
     "what was typed in chats, newest last; --no-history keeps out of it"},
};
constexpr const char* kSummary = "runs language models from their files";
constexpr const char* kNoEffect = "No environment variable changes results or speed.";

std::vector<std::string> lines_of(const std::string& text) {
    std::vector<std::string> lines;
    for (size_t at = 0; at < text.size();) {
        const size_t end = std::min(text.find('\n', at), text.size());
        const size_t begin = std::min(text.find_first_not_of(' ', at), end);
        lines.push_back(text.substr(begin, end - begin));
        at = end + 1;
    }
    return lines;
}

// "sparkinfer run MODEL [OPTIONS]"
std::string usage(const CommandFacts& command) {
    std::string text = "sparkinfer " + command.name;
    for (const OptionFacts& option : command.options)
        if (option.argument) text += option.required ? " " + option.names[0] : " [" + option.names[0] + "]";
    return text + " [OPTIONS]";
}

// "-p, --prompt TEXT"
std::string option_title(const OptionFacts& option) {
    std::string title;
    for (const std::string& name : option.names) title += (title.empty() ? "" : ", ") + name;
    return option.value.empty() ? title : title + " " + option.value;
}

// Text that roff takes as it stands.
std::string roff(const std::string& text) {
    std::string escaped = text.starts_with('.') || text.starts_with('\'') ? "\\&" : "";
    for (const char c : text) escaped += c == '\\' ? "\\e" : c == '-' ? "\\-" : std::string(1, c);
    return escaped;
}

std::string man_facts(const char* title, std::span<const Fact> facts) {
    std::string text = fmt::format(".SH {}\n", title);
    for (const Fact& fact : facts) text += fmt::format(".TP\n.B {}\n{}\n", roff(fact.name), roff(fact.text));
    return text;
}

std::string man_page(const std::vector<CommandFacts>& table) {
    std::string text = fmt::format(
        ".\\\" Made by `sparkinfer manual man`.\n.TH SPARKINFER 1\n.SH NAME\nsparkinfer \\- {}\n.SH "
        "SYNOPSIS\n"
        ".B sparkinfer\n.I COMMAND\n[arguments]\n.br\n.B sparkinfer \\-\\-version\n.SH DESCRIPTION\n"
        "Answers go to standard output, everything else to standard error. A MODEL is a path or the name of "
        "a "
        "model that\n.B sparkinfer pull\nhas obtained.\n.SH COMMANDS\n",
        roff(kSummary));
    for (const CommandFacts& command : table) {
        text += fmt::format(".SS {}\n.B {}\n.PP\n{}\n", roff(command.name), roff(usage(command)),
                            roff(command.summary));
        for (const OptionFacts& option : command.options)
            text += fmt::format(".TP\n.B {}\n{}\n", roff(option_title(option)), roff(option.help));
        text += ".PP\nExamples:\n.PP\n.nf\n";
        for (const std::string& line : lines_of(command.examples)) text += roff(line) + "\n";
        text += ".fi\n";
    }
    text += man_facts("EXIT STATUS", kExitCodes) + man_facts("ENVIRONMENT", kEnvironment);
    return text + fmt::format(".PP\n{}\n", roff(kNoEffect)) + man_facts("FILES", kFiles);
}

// Text in a cell of a table.
std::string cell(const std::string& text) {
    std::string escaped;
    for (const char c : text) escaped += c == '|' ? "\\|" : c == '<' ? "&lt;" : std::string(1, c);
    return escaped;
}

std::string markdown_facts(const char* title, std::span<const Fact> facts) {
    std::string text = fmt::format("\n## {}\n\n| | |\n|---|---|\n", title);
    for (const Fact& fact : facts) text += fmt::format("| `{}` | {} |\n", fact.name, cell(fact.text));
    return text;
}

std::string markdown(const std::vector<CommandFacts>& table) {
    std::string text =
        "# The command line\n\nMade by `sparkinfer manual markdown` from the table that `--help` prints; "
        "`make docs` "
        "makes it again.\n\n| command | |\n|---|---|\n";
    for (const CommandFacts& command : table) {
        std::string anchor = command.name;
        std::replace(anchor.begin(), anchor.end(), ' ', '-');
        text += fmt::format("| [`{}`](#{}) | {} |\n", command.name, anchor, cell(command.summary));
    }
    for (const CommandFacts& command : table) {
        text += fmt::format("\n## {}\n\n    {}\n\n{}.\n\n| | |\n|---|---|\n", command.name, usage(command),
                            command.summary);
        for (const OptionFacts& option : command.options)
            text += fmt::format("| `{}` | {} |\n", option_title(option), cell(option.help));
        text += "\n";
        for (const std::string& line : lines_of(command.examples)) text += "    " + line + "\n";
    }
    text += markdown_facts("Exit codes", kExitCodes) + markdown_facts("Environment", kEnvironment);
    return text + fmt::format("\n{}\n", kNoEffect) + markdown_facts("Files", kFiles);
}

}  // namespace

Result<int> run_command(const ManualOptions& o, Session& session) {
    TRY_VOID(session.out.write(o.format == "man" ? man_page(command_table()) : markdown(command_table())));
    return 0;
}

}  // namespace sparkinfer
