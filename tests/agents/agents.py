"""How each agent is set up and started: files in its home, environment, command line."""

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Callable

import task

ROOT = Path(__file__).resolve().parents[2]
INSTALLED = ROOT / "build" / "agents"
MODEL = "scripted"


@dataclass
class Agent:
    version: str
    command: Callable  # prompt -> arguments
    environment: Callable  # base URL -> variables
    calls: list  # of the script: read, edit, run; empty: no tools
    home: Callable = lambda folder, url: None  # writes the configuration
    path: str = ""  # of the requests that the task is made of
    caches: bool = True  # turn by turn the prompt only grows


def bin_of(name, program):
    return str(INSTALLED / name / "node_modules" / ".bin" / program)


def codex_home(folder, url):
    (folder / ".codex").mkdir()
    (folder / ".codex" / "config.toml").write_text(
        f'model = "{MODEL}"\nmodel_provider = "local"\n[model_providers.local]\nname = "local"\n'
        f'base_url = "{url}/v1"\nwire_api = "responses"\nenv_key = "LOCAL_KEY"\n')


def opencode_home(folder, url):
    config = folder / ".config" / "opencode"
    config.mkdir(parents=True)
    provider = {"npm": "@ai-sdk/openai-compatible", "name": "local", "models": {MODEL: {"name": MODEL}},
                "options": {"baseURL": f"{url}/v1", "apiKey": "key"}}
    (config / "opencode.json").write_text(json.dumps(
        {"model": f"local/{MODEL}", "autoupdate": False, "share": "disabled", "provider": {"local": provider}}))


AGENTS = {
    "codex": Agent(
        version="0.171.0",
        command=lambda prompt, work: [bin_of("codex", "codex"), "exec", "--skip-git-repo-check",
                                      "--dangerously-bypass-approvals-and-sandbox", prompt],
        environment=lambda url: {"LOCAL_KEY": "key"},
        home=codex_home,
        path="/v1/responses",
        calls=[("exec_command", {"cmd": f"cat {task.FILE}"}), ("exec_command", {"cmd": task.PATCH}),
               ("exec_command", {"cmd": f"python3 {task.FILE}"})],
    ),
    "claude": Agent(
        version="2.1.332",
        command=lambda prompt, work: [bin_of("claude", "claude"), "-p", prompt, "--allowedTools", "Bash", "Read",
                                      "Edit"],
        environment=lambda url: {"ANTHROPIC_BASE_URL": url, "ANTHROPIC_AUTH_TOKEN": "key", "ANTHROPIC_MODEL": MODEL,
                                 "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1", "DISABLE_TELEMETRY": "1",
                                 "DISABLE_AUTOUPDATER": "1"},
        path="/v1/messages",
        calls=[("Read", {"file_path": "{work}/" + task.FILE}),
               ("Edit", {"file_path": "{work}/" + task.FILE, "old_string": "sum(prices) - 1",
                         "new_string": "sum(prices)"}),
               ("Bash", {"command": f"python3 {task.FILE}", "description": "Run the program"})],
    ),
    "opencode": Agent(
        version="1.18.33",
        command=lambda prompt, work: [bin_of("opencode", "opencode"), "run", prompt],
        environment=lambda url: {},
        home=opencode_home,
        path="/v1/chat/completions",
        calls=[("read", {"filePath": "{work}/" + task.FILE}),
               ("edit", {"filePath": "{work}/" + task.FILE, "oldString": "sum(prices) - 1",
                         "newString": "sum(prices)"}),
               ("bash", {"command": f"python3 {task.FILE}"})],
    ),
    "qwen": Agent(
        version="0.24.4",
        command=lambda prompt, work: [bin_of("qwen", "qwen"), "--auth-type", "openai", "-y", "-p", prompt],
        environment=lambda url: {"OPENAI_BASE_URL": f"{url}/v1", "OPENAI_API_KEY": "key", "OPENAI_MODEL": MODEL},
        path="/v1/chat/completions",
        calls=[("read_file", {"file_path": "{work}/" + task.FILE}),
               ("edit", {"file_path": "{work}/" + task.FILE, "old_string": "sum(prices) - 1",
                         "new_string": "sum(prices)"}),
               ("run_shell_command", {"command": f"python3 {task.FILE}", "description": "Run the program",
                                      "is_background": "false"})],
    ),
    "aider": Agent(
        version="0.86.2",
        command=lambda prompt, work: [
            str(INSTALLED / "aider" / "bin" / "aider"), "--model", f"openai/{MODEL}", "--edit-format", "diff",
            "--no-check-update", "--no-show-release-notes", "--no-show-model-warnings", "--analytics-disable", "--no-git",
            # Else at the top of the repository around it.
            "--chat-history-file", str(work / ".aider.chat.md"), "--input-history-file", str(work / ".aider.input"),
            "--yes-always", "--auto-test", "--test-cmd", f"python3 {task.FILE} | tee /dev/stderr | grep -qx 'total: 12'",
            "--message", prompt, task.FILE],
        environment=lambda url: {"OPENAI_API_BASE": f"{url}/v1", "OPENAI_API_KEY": "key",
                                 "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
        path="/v1/chat/completions",
        calls=[],
        caches=False,  # the file's text stands in front of the conversation and changes
    ),
}


def script_of(name, work):
    agent = AGENTS[name]
    if not agent.calls:
        return task.aider_rules()
    fill = lambda value: value.replace("{work}", str(work))  # noqa: E731
    return task.rules([(tool, {key: fill(value) for key, value in arguments.items()})
                       for tool, arguments in agent.calls])


def environment_of(name, home, url):
    """Nothing of the caller's but the path and the language."""
    return {"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(home / "tmp"), "LANG": "C.UTF-8", "TERM": "dumb",
            "NO_PROXY": "127.0.0.1", **AGENTS[name].environment(url)}
