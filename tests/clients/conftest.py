"""The official SDKs against the product's server with a model that says what a script has."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "serve"), str(HERE.parent / "agents")]

from sdk_script import SCRIPT  # noqa: E402
from server import ScriptedServer  # noqa: E402


@pytest.fixture(scope="session")
def server(tmp_path_factory):
    with ScriptedServer(SCRIPT, "qwen35", tmp_path_factory.mktemp("scripted"),
                        ["--slots", "4", "--ctx", "4096", "--alias", "x"]) as found:
        yield found
    assert found.failures() == []
    assert found.process.returncode == 0, found.tail()
