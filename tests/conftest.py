"""What all Python tests share: the binary under test, the default model, and a way to run the one on the other."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tools"))


def pytest_addoption(parser):
    parser.addoption(
        "--binary", default=str(ROOT / "build" / "release" / "sparkinfer"), help="the binary under test"
    )


def existing(path, how):
    """A missing prerequisite is a failure, never a skip."""
    if not path.exists():
        pytest.fail(f"{path} is missing; {how}", pytrace=False)
    return path


@pytest.fixture(scope="session")
def binary(request):
    return existing(Path(request.config.getoption("--binary")).resolve(), "build it with `make build`")


@pytest.fixture(scope="session")
def build(binary):
    """The folder that the binary under test was built in."""
    return binary.parent


@pytest.fixture(scope="session")
def make_tiny(tmp_path_factory):
    """Makes a tiny random model with tokenizer and template (see tools/make_tiny_model.py); returns its path."""

    def make(variant):
        path = tmp_path_factory.mktemp("tiny") / "model.gguf"
        command = [sys.executable, str(ROOT / "tools" / "make_tiny_model.py"), variant, "--gguf", str(path)]
        subprocess.run(command, check=True, capture_output=True)
        return path

    return make


@pytest.fixture(scope="session")
def smollm2():
    """The default model, SmolLM2-135M-Instruct Q4_1."""
    return existing(ROOT / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf", "fetch it with `make model`")


@pytest.fixture(scope="session")
def sparkinfer(binary):
    """Runs the binary and returns what it did; fails if the exit code is not the expected one."""

    def run(*arguments, code=0, timeout=300, stdin=None):
        command = [str(binary), *map(str, arguments)]
        done = subprocess.run(command, input=stdin, capture_output=True, text=True, timeout=timeout)
        if done.returncode != code:
            pytest.fail(
                f"{' '.join(command)}\nexit code {done.returncode}, expected {code}\n{done.stderr[-2000:]}",
                pytrace=False,
            )
        return done

    return run


@pytest.fixture(scope="session")
def run_json(sparkinfer):
    """`run --raw --temp 0 --json` of a prompt, as the parsed object."""

    def run(model, prompt, count):
        arguments = ["run", model, "--raw", "--temp", 0, "-n", count, "--json", "-p", prompt]
        return json.loads(sparkinfer(*arguments).stdout)

    return run
