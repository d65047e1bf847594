"""Two real agents do the scripted task against the product's server on loopback; `make proof` runs all five.

Risk: an agent in use cannot finish its task: an event it does not take, a tool call it cannot parse, a prompt that is
computed again at every turn.
"""

import subprocess

import checks
import pytest


@pytest.fixture(scope="module")
def installed():
    subprocess.run([str(checks.HERE.parents[1] / "tools" / "proof" / "install_agents.sh"), "codex", "opencode"], check=True)


@pytest.mark.parametrize("agent", ["codex", "opencode"])
def test_does_its_task(installed, agent, tmp_path):
    told = checks.run(agent, keep=tmp_path / "run")
    assert checks.problems(told) == []
    assert checks.shape_problems(told) == []
