"""`sparkinfer connect`: what it prints, what it writes into a home folder, what it refuses."""

import json
import os
import stat
import tomllib

import pytest

FILES = {"claude": ".claude/settings.json", "codex": ".codex/config.toml", "opencode": ".config/opencode/opencode.json",
         "qwen": ".qwen/settings.json", "aider": ".aider.conf.yml"}


@pytest.fixture
def connect(execute, tmp_path):
    """Runs it in a home of its own; returns stdout and stderr."""

    def run(*arguments, code=0, **environment):
        found, out, err = execute("connect", *arguments, env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **environment})
        assert found == code, err.decode()
        return out.decode(), err.decode()

    return run


# Risk: a client's file is written when nobody asked for it, or what is printed is not what is written.
@pytest.mark.parametrize("client", FILES)
def test_prints_what_it_writes(connect, tmp_path, client):
    printed, _ = connect(client, "--url", "http://gpu:1/v1/", "--model", "m")
    assert not list(tmp_path.iterdir()), "nothing is written without --write"
    silent, said = connect(client, "--url", "http://gpu:1", "--model", "m", "--write")
    path = tmp_path / FILES[client]
    assert silent == "" and str(path) in said
    assert path.read_text() == printed
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "http://gpu:1" in printed and "gpu:1/v1/v1" not in printed
    _, said = connect(client, "--url", "http://gpu:1", "--model", "m", "--write")
    assert "already" in said and [p.name for p in path.parent.iterdir()] == [path.name]


# Risk: the user's settings or the last good file are lost.
def test_merges_and_keeps_a_backup(connect, tmp_path):
    (tmp_path / ".claude").mkdir()
    path = tmp_path / FILES["claude"]
    before = '{"model": "opus", "env": {"A": "1"}}'
    path.write_text(before)
    keys = tmp_path / "keys"
    keys.write_text("# of the team\nsha256:00\nsecret-1\nsecret-2\n")
    connect("claude", "--key-file", keys, "--write")
    settings = json.loads(path.read_text())
    assert settings["model"] == "opus" and settings["env"]["A"] == "1"
    assert settings["env"]["ANTHROPIC_AUTH_TOKEN"] == "secret-1"
    assert settings["env"]["ANTHROPIC_BASE_URL"] == "http://127.0.0.1:8080"
    backup = path.with_name(path.name + ".bak")
    assert backup.read_text() == before and stat.S_IMODE(backup.stat().st_mode) == 0o600

    (tmp_path / ".codex").mkdir()
    config = tmp_path / FILES["codex"]
    config.write_text('# mine\nmodel = "gpt"\n[mcp_servers.docs]\ncommand = "x"\n')
    _, said = connect("codex", "--key-file", keys, "--write")
    parsed = tomllib.loads(config.read_text())
    assert parsed["model"] == "sparkinfer" and parsed["model_provider"] == "sparkinfer"
    assert parsed["mcp_servers"]["docs"]["command"] == "x" and config.read_text().count("# mine") == 1
    provider = parsed["model_providers"]["sparkinfer"]
    assert provider["base_url"] == "http://127.0.0.1:8080/v1" and provider["wire_api"] == "responses"
    assert provider["env_key"] in said and "secret-1" not in config.read_text()


# Risk: the file lies where the client does not look.
def test_xdg(connect, tmp_path):
    connect("opencode", "--write", XDG_CONFIG_HOME=str(tmp_path / "elsewhere"))
    assert json.loads((tmp_path / "elsewhere/opencode/opencode.json").read_text())["model"] == "sparkinfer/sparkinfer"


# Risk: a file that could not be read is written over.
def test_refuses(connect, tmp_path):
    (tmp_path / ".claude").mkdir()
    path = tmp_path / FILES["claude"]
    path.write_text("{ // a comment\n}")
    _, said = connect("claude", "--write", code=3)
    assert str(path) in said and "is not JSON" in said
    assert path.read_text() == "{ // a comment\n}"
    _, said = connect("cursor", code=2)
    assert "the client is 'cursor', expected claude, codex, opencode, qwen or aider" in said
    _, said = connect("claude", "--url", "localhost:8080", code=2)
    assert "--url is 'localhost:8080', expected http://HOST:PORT or https://HOST:PORT" in said
    _, said = connect("claude", HOME="", code=2)
    assert "HOME is not set" in said
    (tmp_path / "keys").write_text("sha256:00\n")
    _, said = connect("claude", "--key-file", tmp_path / "keys", code=3)
    assert "holds only hashes of keys" in said
