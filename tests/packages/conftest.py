"""The packages of the build under test, made once and installed far from the source tree."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def tiny(make_tiny):
    """A tiny random llama (4 MB, context 1024, vocabulary 512) with tokenizer and chat template."""
    return make_tiny("llama")


@pytest.fixture(scope="session")
def make_packages(build):
    """Makes packages of some kinds in a folder; returns the folder."""
    def make(folder, *kinds):
        subprocess.run([sys.executable, ROOT / "packaging" / "packages.py", build, folder, *kinds], check=True,
                       capture_output=True, text=True)
        return folder

    return make


@pytest.fixture(scope="session")
def packages(make_packages, tmp_path_factory):
    """A folder with all of them."""
    return make_packages(tmp_path_factory.mktemp("packages"))


@pytest.fixture(scope="session")
def tree(build, tmp_path_factory):
    """What `make install` installs, below a prefix with a space in it."""
    staged = tmp_path_factory.mktemp("staged tree")
    subprocess.run(["cmake", "--install", build, "--prefix", "/opt/spark infer", "--strip"], check=True,
                   capture_output=True, env={**os.environ, "DESTDIR": str(staged)})
    return staged / "opt" / "spark infer"


@pytest.fixture(scope="session")
def clean(tmp_path_factory):
    """Runs a command with an empty home, an empty folder to be in, and no variables of this process; returns its stdout."""
    home = tmp_path_factory.mktemp("home")
    here = tmp_path_factory.mktemp("elsewhere")

    def run(*command, code=0, cwd=here, **environment):
        done = subprocess.run([*map(str, command)], capture_output=True, text=True, cwd=cwd, timeout=300,
                              stdin=subprocess.DEVNULL, env={"PATH": "/usr/bin:/bin", "HOME": str(home), **environment})
        assert done.returncode == code, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        return done.stdout

    return run


@pytest.fixture(scope="session")
def installed_wheel(packages, tmp_path_factory):
    """The bin folder of a fresh environment with the wheel. numpy is that of the tests: nothing is downloaded."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    wheel, = packages.glob("*.whl")
    subprocess.run([folder / "bin" / "pip", "install", "-q", "--no-index", "--no-deps", wheel], check=True, cwd=folder)
    site, = folder.glob("lib/python*/site-packages")
    numpy = Path(sysconfig.get_path("purelib"))
    for name in ("numpy", "numpy.libs"):
        if (numpy / name).exists():
            (site / name).symlink_to(numpy / name)
    return folder / "bin"
