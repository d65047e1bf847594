#!/usr/bin/env bash
# Coding agents at the versions that the proof is made with, each in a folder of its own under build/agents (ignored by
# git): install_agents.sh [codex|claude|opencode|qwen|aider]…   Without a name: all. Present already: silent and instant.
# Sizes and times as seen: Codex 424 MB in 31 s, OpenCode 354 MB in 30 s (these two in continuous integration), Claude Code
# 384 MB in 15 s, Qwen Code 144 MB in 25 s, aider 687 MB.
set -euo pipefail
cd "$(dirname "$0")/../.."
agents=build/agents

npm_agent() { # NAME PACKAGE VERSION
    local folder="$agents/$1" stamp="$agents/$1/.installed-$3"
    [ ! -e "$stamp" ] || return 0
    rm -rf "$folder"
    mkdir -p "$folder"
    local start=$SECONDS
    # Some put their binary in place by an install script of theirs.
    npm install --prefix "$folder" --no-audit --no-fund --no-save --loglevel=error "$2@$3" >&2
    touch "$stamp"
    echo "$2@$3: $(du -sm "$folder" | cut -f1) MB in $((SECONDS - start)) s"
}

pip_agent() { # NAME PACKAGE VERSION
    local folder="$agents/$1" stamp="$agents/$1/.installed-$3"
    [ ! -e "$stamp" ] || return 0
    rm -rf "$folder"
    local start=$SECONDS
    tools/proof/venv.sh "$folder" "$2==$3"
    touch "$stamp"
    echo "$2==$3: $(du -sm "$folder" | cut -f1) MB in $((SECONDS - start)) s"
}

[ $# -gt 0 ] || set -- codex claude opencode qwen aider
for name in "$@"; do
    case "$name" in
    codex) npm_agent codex @openai/codex 0.171.0 ;;
    claude) npm_agent claude @anthropic-ai/claude-code 2.1.332 ;;
    opencode) npm_agent opencode opencode-ai 1.18.33 ;;
    qwen) npm_agent qwen @qwen-code/qwen-code 0.24.4 ;;
    aider) pip_agent aider aider-chat 0.86.2 ;;
    *)
        echo "install_agents.sh: '$name' is no agent; expected codex, claude, opencode, qwen or aider" >&2
        exit 2
        ;;
    esac
done
