// completion.cpp — `sparkinfer completion`: scripts that make a shell complete commands, flags, their words
// and files, made from the table that --help prints.
#include <algorithm>

#include "cli/commands.h"

namespace sparkinfer {

namespace {

// What comes before or after `commands` alone, in every shell.
constexpr const char* kTop[] = {"help", "--help", "--version"};

bool is_file(const std::string& value) {
    static constexpr const char* kFiles[] = {"FILE",  "FOLDER", "DIR", "SOURCE",
                                             "MODEL", "IN",     "OUT", "LLAMA_BENCH"};
    return std::find(std::begin(kFiles), std::end(kFiles), value) != std::end(kFiles) ||
           value.ends_with(".npy");
}

std::string joined(const std::vector<std::string>& words, const char* between) {
    std::string text;
    for (const std::string& word : words) text += (text.empty() ? "" : between) + word;
    return text;
}

// A word of single quotes; the shells agree on them but for a quote inside.
std::string quoted(const std::string& text, const char* quote_inside) {
    std::string word = "'";
    for (const char c : text) word += c == '\'' ? std::string(quote_inside) : std::string(1, c);
    return word + "'";
}

// The words that the command's arguments know, each once.
std::vector<std::string> argument_words(const CommandFacts& command) {
    std::vector<std::string> words;
    for (const OptionFacts& option : command.options)
        if (option.argument)
            for (const std::string& word : option.words)
                if (std::find(words.begin(), words.end(), word) == words.end()) words.push_back(word);
    if (command.name == "bench") words.emplace_back("serve");
    return words;
}

bool takes_files(const CommandFacts& command) {
    return std::any_of(command.options.begin(), command.options.end(),
                       [](const OptionFacts& option) { return option.argument && is_file(option.names[0]); });
}

std::string bash_command(const CommandFacts& command) {
    std::string text = fmt::format("        '{}')\n            case \"$previous\" in\n", command.name);
    std::vector<std::string> flags;
    for (const OptionFacts& option : command.options) {
        if (option.argument) continue;
        flags.insert(flags.end(), option.names.begin(), option.names.end());
        if (option.value.empty()) continue;
        const std::string does = !option.words.empty()
                                     ? fmt::format("_sparkinfer_words '{}'", joined(option.words, " "))
                                 : is_file(option.value) ? "_sparkinfer_files"
                                                         : ":";
        text += fmt::format("                {}) {}; return ;;\n", joined(option.names, "|"), does);
    }
    return text + fmt::format("            esac\n            flags='{}' words='{}' files={} ;;\n",
                              joined(flags, " "), joined(argument_words(command), " "),
                              takes_files(command) ? "1" : "");
}

std::string bash_script(const std::vector<CommandFacts>& table) {
    std::vector<std::string> top(std::begin(kTop), std::end(kTop));
    std::string cases;
    for (const CommandFacts& command : table) {
        if (command.name.find(' ') == std::string::npos) top.push_back(command.name);
        cases += bash_command(command);
    }
    return fmt::format(R"(# bash completion for sparkinfer: source <(sparkinfer completion bash)
_sparkinfer_words() {{ COMPREPLY+=($(compgen -W "$1" -- "$current")); }}
_sparkinfer_files() {{
    local IFS=$'\n'
    compopt -o filenames 2>/dev/null
    COMPREPLY+=($(compgen -f -- "$current"))
}}
_sparkinfer() {{
    local current="${{COMP_WORDS[COMP_CWORD]}}" previous="${{COMP_WORDS[COMP_CWORD-1]}}"
    local command="${{COMP_WORDS[1]}}" flags= words= files=
    COMPREPLY=()
    if [ "$COMP_CWORD" -eq 1 ]; then
        _sparkinfer_words '{}'
        return
    fi
    if [ "$COMP_CWORD" -gt 2 ] && [ "$command ${{COMP_WORDS[2]}}" = 'bench serve' ]; then
        command='bench serve'
    fi
    case "$command" in
{}        *) return ;;
    esac
    case "$current" in
        -*) _sparkinfer_words "$flags" ;;
        *)
            _sparkinfer_words "$words"
            [ -z "$files" ] || _sparkinfer_files ;;
    esac
}}
complete -F _sparkinfer sparkinfer
)",
                       joined(top, " "), cases);
}

// Text inside of a specification of _arguments.
std::string zsh_text(const std::string& text) {
    std::string escaped;
    for (const char c : text) {
        if (c == '[' || c == ']' || c == ':' || c == '\\') escaped += '\\';
        escaped += c;
    }
    return escaped;
}

std::string zsh_action(const OptionFacts& option, const std::string& value) {
    if (!option.words.empty()) {
        std::string words;
        for (const std::string& word : option.words)
            words.append(words.empty() ? "" : " ").append(zsh_text(word));
        return fmt::format("({})", words);
    }
    return is_file(value) ? "_files" : " ";
}

std::string zsh_command(const CommandFacts& command) {
    std::string text = fmt::format("        '{}')\n            _arguments -s", command.name);
    for (const OptionFacts& option : command.options) {
        const std::string& name = option.names[0];
        const auto add = [&](const std::string& spec) {
            text += " \\\n                " + quoted(spec, "'\\''");
        };
        if (option.argument) {
            // A word that nothing is known of has no line: its message would hide the flags.
            if (option.words.empty() && !is_file(name)) continue;
            add(fmt::format("*:{}:{}", zsh_text(name), zsh_action(option, name)));
            continue;
        }
        std::string spec = fmt::format("[{}]", zsh_text(option.help));
        if (!option.value.empty())
            spec += fmt::format(":{}:{}", zsh_text(option.value), zsh_action(option, option.value));
        for (const std::string& one : option.names)
            add(fmt::format("({}){}{}", joined(option.names, " "), one, spec));
    }
    return text + " ;;\n";
}

std::string zsh_script(const std::vector<CommandFacts>& table) {
    std::string commands, cases;
    for (const CommandFacts& command : table) {
        if (command.name.find(' ') == std::string::npos)
            commands +=
                fmt::format("        {}\n", quoted(command.name + ":" + zsh_text(command.summary), "'\\''"));
        cases += zsh_command(command);
    }
    return fmt::format(R"(#compdef sparkinfer
# zsh completion for sparkinfer: sparkinfer completion zsh > FOLDER/_sparkinfer, with FOLDER in fpath
_sparkinfer() {{
    local -a commands=(
{}    )
    if (( CURRENT == 2 )); then
        _describe command commands
        compadd -- {}
        return
    fi
    shift words
    (( CURRENT-- ))
    local command=$words[1]
    if (( CURRENT > 2 )) && [[ "$command $words[2]" == 'bench serve' ]]; then
        command='bench serve'
        shift words
        (( CURRENT-- ))
    elif [[ $command == bench ]] && (( CURRENT == 2 )); then
        compadd serve
    fi
    case $command in
{}    esac
}}
if [[ $funcstack[1] == _sparkinfer ]]; then
    _sparkinfer "$@"
else
    compdef _sparkinfer sparkinfer
fi
)",
                       commands, joined({std::begin(kTop), std::end(kTop)}, " "), cases);
}

std::string fish_script(const std::vector<CommandFacts>& table) {
    constexpr const char* kQuote = "\\'";
    std::string text =
        "# fish completion for sparkinfer: sparkinfer completion fish > "
        "~/.config/fish/completions/sparkinfer.fish\n"
        "complete -c sparkinfer -f\n";
    for (const char* word : kTop)
        text += fmt::format("complete -c sparkinfer -n __fish_use_subcommand -a {}\n", word);
    for (const CommandFacts& command : table) {
        std::string condition = "__fish_seen_subcommand_from " + command.name;
        if (command.name == "bench") condition += "; and not __fish_seen_subcommand_from serve";
        if (command.name == "serve") condition += "; and not __fish_seen_subcommand_from bench";
        if (command.name == "bench serve")
            condition = "__fish_seen_subcommand_from bench; and __fish_seen_subcommand_from serve";
        else
            text += fmt::format("complete -c sparkinfer -n __fish_use_subcommand -a {} -d {}\n", command.name,
                                quoted(command.summary, kQuote));
        const std::string begin = fmt::format("complete -c sparkinfer -n '{}'", condition);
        for (const OptionFacts& option : command.options) {
            if (option.argument) continue;
            std::string line = begin;
            for (const std::string& name : option.names)
                line += name.starts_with("--") ? fmt::format(" -l {}", name.substr(2))
                                               : fmt::format(" -s {}", name.substr(1));
            if (!option.words.empty())
                line += fmt::format(" -x -a '{}'", joined(option.words, " "));
            else if (!option.value.empty())
                line += is_file(option.value) ? " -r -F" : " -x";
            text += line + " -d " + quoted(option.help, kQuote) + "\n";
        }
        if (const auto words = argument_words(command); !words.empty())
            text += fmt::format("{} -a '{}'\n", begin, joined(words, " "));
        if (takes_files(command)) text += begin + " -F\n";
    }
    return text;
}

}  // namespace

Result<int> run_command(const CompletionOptions& o, Session& session) {
    const std::vector<CommandFacts> table = command_table();
    TRY_VOID(session.out.write(o.shell == "bash"  ? bash_script(table)
                               : o.shell == "zsh" ? zsh_script(table)
                                                  : fish_script(table)));
    return 0;
}

}  // namespace sparkinfer
