"""What the end-to-end tests share: a tiny model with a tokenizer and a template, and the command with bytes in and out."""

import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture(scope="session")
def tiny(make_tiny):
    """A tiny random llama (4 MB, context 1024, vocabulary 512) with tokenizer and chat template."""
    return make_tiny("llama")


@pytest.fixture(scope="session")
def execute(binary):
    """Runs the binary; returns (exit code, stdout, stderr), both as bytes. Never raises for an exit code."""

    def run(*arguments, stdin=b"", timeout=120, **more):
        command = [str(binary), *map(str, arguments)]
        done = subprocess.run(command, input=stdin, capture_output=True, timeout=timeout, **more)
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture(scope="session")
def refused(execute):
    """Runs the binary, checks that it ends with `code`, an empty stdout and one sentence on stderr; returns that."""

    def run(code, *arguments, **more):
        found, out, err = execute(*arguments, **more)
        text = err.decode()
        assert found == code, f"exit code {found}, expected {code}: {text}"
        assert out == b""
        lines = text.splitlines()
        assert len(lines) == 1, text
        assert lines[0].startswith("sparkinfer: error: "), text
        return lines[0].removeprefix("sparkinfer: error: ")

    return run


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """One headless Chromium for all tests of pages; each test opens its own tab with its own storage."""
    from browser import Browser

    chromium = Browser(tmp_path_factory.mktemp("chromium"))
    yield chromium
    chromium.close()


@pytest.fixture
def shot():
    """Keeps a picture of a page under build/web, for people to look at."""
    folder = ROOT / "build" / "web"
    folder.mkdir(parents=True, exist_ok=True)

    def take(page, name):
        page.screenshot(folder / f"{name}.png")
        assert (folder / f"{name}.png").stat().st_size > 10_000, "an empty page"

    return take


@pytest.fixture
def mock():
    """A server that plays the endpoints; see web_mock.py."""
    from web_mock import MockServer

    server = MockServer().start()
    yield server
    server.stop()
