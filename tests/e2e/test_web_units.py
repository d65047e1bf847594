"""Risk: parts of the web page that need no browser are wrong; their own tests say what that would do."""

import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
WEB = ROOT / "src" / "server" / "web"


@pytest.mark.parametrize("name", sorted(p.name for p in (ROOT / "tests" / "web").glob("*.test.js")))
def test_under_node(name, tmp_path):
    node = shutil.which("node")
    assert node, "node is missing; `tools/setup.sh test` installs it"
    (tmp_path / "package.json").write_text('{"type": "module"}')    # what the browser is told by <script type="module">
    shutil.copytree(WEB, tmp_path / "web")
    shutil.copytree(ROOT / "tests" / "web", tmp_path / "tests")
    done = subprocess.run([node, "--test", f"tests/{name}"], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]
    assert "# pass 0" not in done.stdout, "no test ran"
