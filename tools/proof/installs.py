"""Each package, installed in a clean root and used there: Debian 12 as debootstrap makes it, nothing of the host in it, no network, an
ordinary user, no variables. Needs root and debootstrap."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from server import BUILD, ROOT, tiny_model

SUITE = "bookworm"    # the oldest that is promised
NUMPY = next(line for line in (ROOT / "tools" / "requirements.txt").read_text().splitlines() if line.startswith("numpy=="))
NOBODY, NOGROUP = 65534, 65534
RUN = ["-n", "8", "--temp", "0", "-p", "Hello"]
CHECK = """
import json
from sparkinfer import Model
model = Model("/srv/model.gguf")
ids = model.tokenize("Hello")
answer = model.generate("Hello", max_tokens=8, temperature=0)
assert "".join(model.stream("Hello", max_tokens=8, temperature=0)) == answer and model.detokenize(ids) == "Hello"
print(json.dumps([answer, list(model.logits(ids).shape)]))
"""


def checked(*command, **more):
    done = subprocess.run([*map(str, command)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=1800, check=False,
                          stdin=subprocess.DEVNULL, **more)
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(map(str, command))} ended with {done.returncode}\n{done.stdout[-3000:]}")
    return done.stdout


def version():
    return f"Debian {SUITE}, minbase, {checked('debootstrap', '--version').strip()}"


def base_root():
    """The root that each part begins with a copy of; with Python, for the wheel."""
    base = BUILD.parent / "proof" / f"root-{SUITE}"
    if not (base / ".whole").exists():
        if os.geteuid() != 0 or not shutil.which("debootstrap"):
            raise RuntimeError("a clean root needs root and debootstrap: apt-get install debootstrap")
        shutil.rmtree(base, ignore_errors=True)
        checked("debootstrap", "--variant=minbase", "--include=python3-venv", SUITE, base)
        (base / ".whole").touch()
    return base


class CleanRoot:
    """A copy of the base below `folder`, with a tiny model at /srv/model.gguf."""

    def __init__(self, folder):
        self.path = folder / "root"
        checked("cp", "-a", "--reflink=auto", base_root(), self.path)
        shutil.copy(tiny_model("llama"), self.path / "srv" / "model.gguf")

    def run(self, *command, user="nobody", home="/nonexistent"):
        """Runs a command in the root without any network; its output."""
        inside = ["unshare", "--net", "--mount", "--pid", "--fork", f"--mount-proc={self.path}/proc", "chroot"]
        inside += [] if user == "root" else [f"--userspec={user}"]
        return checked(*inside, self.path, "/usr/bin/env", "-i", "PATH=/usr/sbin:/usr/bin:/sbin:/bin", f"HOME={home}", *command)

    def installed(self):
        """Every path below /usr and /etc."""
        return {str(path.relative_to(self.path)) for name in ("usr", "etc") for path in (self.path / name).rglob("*")}

    def answers(self, program):
        """The program there says what it says here; its version."""
        there = self.run("sh", "-c", 'exec "$0" "$@" 2>/dev/null', program, "run", "/srv/model.gguf", *RUN)
        here = subprocess.run([BUILD / "sparkinfer", "run", tiny_model("llama"), *RUN], stdin=subprocess.DEVNULL,
                              capture_output=True, text=True, check=True).stdout
        if there != here or not here.strip():
            raise RuntimeError(f"the installed program answers {there!r}, the built one {here!r}")
        return there


def make(folder, kind):
    """Makes one package; its path."""
    checked(sys.executable, ROOT / "packaging" / "packages.py", BUILD, folder, kind)
    return next(path for path in folder.iterdir() if path.name != "SHA256SUMS")


def megabytes(path):
    return f"{path.stat().st_size / 1e6:.1f} MB"


def deb(folder):
    """the .deb: dpkg takes it, the program answers, the library is found, purging leaves nothing behind."""
    package, root = make(folder / "out", "deb"), CleanRoot(folder)
    before = root.installed()
    shutil.copy(package, root.path / "srv" / package.name)
    root.run("dpkg", "-i", f"/srv/{package.name}", user="root")
    root.answers("sparkinfer")
    if "libsparkinfer.so.0" not in root.run("ldconfig", "-p", user="root"):
        raise RuntimeError("the library is not in the linker's cache")
    added = root.installed() - before
    if root.run("dpkg", "--verify", "sparkinfer", user="root").strip():
        raise RuntimeError("dpkg --verify finds files that are not as the package has them")
    root.run("dpkg", "--purge", "sparkinfer", user="root")
    left = root.installed() - before
    if left:
        raise RuntimeError(f"purged, it leaves {sorted(left)[:3]}")
    return {"size": megabytes(package), "paths": len(added)}


def tarball(folder):
    """the tarball: the program answers where it was unpacked, and where it was moved to."""
    package, root = make(folder / "out", "tarball"), CleanRoot(folder)
    before = root.installed()
    target = root.path / "srv" / "some where"
    target.mkdir()
    checked("tar", "-xzf", package, "-C", target)
    name = next(target.iterdir()).name
    root.answers(f"/srv/some where/{name}/bin/sparkinfer")
    target.rename(root.path / "opt" / "moved")
    root.answers(f"/opt/moved/{name}/bin/sparkinfer")
    if root.installed() != before:
        raise RuntimeError("running it changed the system")
    return {"size": megabytes(package)}


def wheel(folder):
    """the wheel: pip takes it into a fresh environment of an ordinary user; command and module answer."""
    package, root = make(folder / "out", "wheel"), CleanRoot(folder)
    wheels, home = root.path / "srv" / "wheels", root.path / "srv" / "user"
    wheels.mkdir()
    home.mkdir()
    os.chown(home, NOBODY, NOGROUP)
    shutil.copy(package, wheels)
    python = root.run("python3", "-c", "import sys; print('.'.join(map(str, sys.version_info[:2])))").strip()
    checked(sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--only-binary", ":all:", "--python-version", python,
            "-d", wheels, NUMPY)
    user = {"home": "/srv/user"}
    root.run("python3", "-m", "venv", "/srv/user/env", **user)
    root.run("/srv/user/env/bin/pip", "install", "-q", "--no-index", "--find-links", "/srv/wheels", "sparkinfer", **user)
    answer = root.answers("/srv/user/env/bin/sparkinfer")
    text, shape = json.loads(root.run("/srv/user/env/bin/python", "-c", CHECK, **user))
    if text.strip() != answer.strip() or shape[1] != 512:
        raise RuntimeError(f"the module answers {text!r}, logits of {shape}; the command {answer!r}")
    return {"size": megabytes(package), "python": python, "tag": package.stem.split("-", 2)[2]}
