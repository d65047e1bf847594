"""Risk: help, man page, Markdown and completions say different things, or none."""

import os
import re
import subprocess

import pytest
from terminal import Terminal

from conftest import ROOT


@pytest.fixture(scope="module")
def commands(execute):
    """Names of all commands, from the overview."""
    overview = execute("--help")[1].decode()
    block = overview.split("Commands:\n")[1].split("\n\n")[0]
    return [re.split(r"\s{2,}", line.strip())[0] if "  " in line.strip() else line.split()[0]
            for line in block.splitlines()]


def flags_of(execute, command):
    text = execute(*command.split(), "--help")[1].decode().split("Examples:")[0]
    return set(re.findall(r"^  (?:-\w,)?(--[a-z][a-z0-9-]*)", text, re.MULTILINE))


def test_every_command_has_help_with_examples(execute, commands):
    assert len(commands) >= 16 and "bench serve" in commands
    for command in commands:
        code, out, _ = execute(*command.split(), "--help")
        examples = out.decode().split("Examples:\n")[1]
        assert code == 0 and f"sparkinfer {command}" in examples, command


def test_the_reference_is_that_of_this_program(execute):
    for form, name in (("markdown", "cli.md"), ("man", "sparkinfer.1")):
        code, out, _ = execute("manual", form)
        assert code == 0
        assert (ROOT / "docs" / name).read_bytes() == out, "run `make docs`"


def test_the_manual_has_every_flag_of_the_help(execute, commands):
    markdown = execute("manual", "markdown")[1].decode()
    page = execute("manual", "man")[1].decode().replace("\\-", "-")
    for command in commands:
        section = markdown.split(f"\n## {command}\n")[1].split("\n## ")[0]
        listed = page.split(f"\n.SS {command}\n")[1].split("\n.SS ")[0]
        for flag in flags_of(execute, command):
            assert f"{flag}`" in section or f"{flag} " in section, (command, flag)
            assert flag in listed, (command, flag)


def test_the_man_page_renders(execute):
    page = execute("manual", "man")[1]
    done = subprocess.run(["groff", "-man", "-Tutf8", "-Kutf8", "-ww"], input=page, capture_output=True, check=True)
    assert done.stderr == b""
    text = re.sub(r"\x1b\[[0-9;]*m|.\x08", "", done.stdout.decode())
    for part in ("NAME", "SYNOPSIS", "EXIT STATUS", "ENVIRONMENT", "FILES", "--backend NAME", "NO_COLOR"):
        assert part in text, part


def bash(script, words):
    call = f'source {script}; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _sparkinfer; printf "%s\\n" "${{COMPREPLY[@]}}"'
    done = subprocess.run(["bash", "--norc", "-c", call, "bash", *words], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    found = [word for word in done.stdout.split("\n") if word]
    assert len(found) == len(set(found)), "each word once"
    return set(found)


def fish(script, words):
    line = " ".join(words)
    done = subprocess.run(["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"],
                          capture_output=True, text=True, check=True)  # fmt: skip
    assert done.stderr == ""
    found = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert len(found) == len(set(found)), "each word once"
    return set(found)


@pytest.mark.parametrize("shell, complete", [("bash", bash), ("fish", fish)])
def test_completion(execute, commands, tmp_path, shell, complete):
    script = tmp_path / "completion"
    script.write_bytes(execute("completion", shell)[1])
    top = complete(script, ["sparkinfer", ""])
    assert {c for c in commands if " " not in c} <= top
    assert complete(script, ["sparkinfer", "run", "--backe"]) == {"--backend"}
    assert complete(script, ["sparkinfer", "run", "--backend", ""]) == {"auto", "cuda", "cpu"}
    assert complete(script, ["sparkinfer", "completion", "z"]) == {"zsh"}
    assert {"cpu", "cuda:op", "cuda:graph"} <= complete(script, ["sparkinfer", "diff", "m", "c"])
    assert complete(script, ["sparkinfer", "bench", "serve", "--clie"]) == {"--clients"}
    for command in commands:
        found = complete(script, ["sparkinfer", *command.split(), "--"])
        assert flags_of(execute, command) <= found, command


def test_completion_in_zsh(binary, execute, tmp_path):
    (tmp_path / "_sparkinfer").write_bytes(execute("completion", "zsh")[1])
    env = {"PATH": f"{binary.parent}:{os.environ['PATH']}", "PS1": "$ ", "ZDOTDIR": str(tmp_path)}
    with Terminal(["zsh", "-f", "-i"], env=env) as terminal:
        terminal.settle(1)
        terminal.send(f"fpath=({tmp_path} $fpath); autoload -U compinit; compinit -u -D\r")
        terminal.send("show() { print -r -- \"<<$BUFFER>>\" }; zle -N show; bindkey '^T' show; echo re''ady\r")
        terminal.expect("ready")
        for typed, completed in (
            ("sparkinfer comp\t", "sparkinfer completion"),
            ("sparkinfer run --backe\t", "sparkinfer run --backend"),
            ("sparkinfer run --backend a\t", "sparkinfer run --backend auto"),
            ("sparkinfer bench serve --clie\t", "sparkinfer bench serve --clients"),
        ):
            terminal.send("\x15" + typed)
            terminal.settle(0.5)
            terminal.send("\x14")
            assert terminal.expect(">>", 20).split("<<")[1].strip() == completed


def test_version_says_how_it_was_built(execute):
    code, out, _ = execute("--version")
    lines = out.decode().splitlines()
    assert code == 0 and re.fullmatch(r"sparkinfer \S+ \(commit \S+\)", lines[0])
    assert {line.split()[0] for line in lines[1:]} == {"built", "backends", "libraries", "system"}
