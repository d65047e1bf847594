"""The Debian package: the tree under /usr, with what Debian wants to be told of it."""

import gzip
import hashlib
import os
import shutil
import subprocess
from email.utils import formatdate

from tree import SUMMARY, PackagingError, output_of

MAINTAINER = "sparkinfer <sparkinfer@localhost>"
CONTROL = """Package: sparkinfer
Version: {version}
Architecture: amd64
Maintainer: {maintainer}
Installed-Size: {kilobytes}
Depends: {depends}
Section: science
Priority: optional
Description: {summary}
 One program and one library, with a CPU backend: answers prompts, chats, serves
 the APIs of OpenAI and Anthropic over HTTP, quantises and converts models.
"""
CHANGELOG = """sparkinfer ({version}) unstable; urgency=low

  * See /usr/share/doc/sparkinfer/CHANGELOG.md.gz.

 -- {maintainer}  {date}
"""


def compressed(data):
    return gzip.compress(data, 9, mtime=0)


def debianise(usr, version, epoch):
    """Puts things where Debian has them: compressed pages, zsh's folder for packages, one copyright file."""
    share, doc = usr / "share", usr / "share" / "doc" / "sparkinfer"
    zsh = share / "zsh" / "vendor-completions"
    (share / "zsh" / "site-functions").rename(zsh)
    for path in (share / "man" / "man1" / "sparkinfer.1", doc / "CHANGELOG.md"):
        path.with_name(path.name + ".gz").write_bytes(compressed(path.read_bytes()))
        path.unlink()
    text = CHANGELOG.format(version=version, maintainer=MAINTAINER, date=formatdate(epoch))
    (doc / "changelog.gz").write_bytes(compressed(text.encode()))
    (doc / "copyright").write_text((doc / "LICENSE").read_text() + "\n" + (doc / "THIRD-PARTY-NOTICES").read_text())
    (doc / "LICENSE").unlink()
    (doc / "THIRD-PARTY-NOTICES").unlink()
    for path in usr.rglob("*"):
        if path.is_file() and not path.is_symlink() and path.parent.name != "bin":
            path.chmod(0o644)


def depends(work, usr):
    """What dpkg-shlibdeps finds that the binaries need."""
    (work / "debian").mkdir()
    (work / "debian" / "control").write_text("Source: sparkinfer\n\nPackage: sparkinfer\nArchitecture: amd64\n")
    library = (usr / "lib" / "libsparkinfer.so").resolve()
    found = output_of("dpkg-shlibdeps", "-O", usr / "bin" / "sparkinfer", library, cwd=work)
    return found.strip().removeprefix("shlibs:Depends=")


def make_deb(work, folder, version, epoch):
    """Writes the package of the tree in work/root/usr; returns its path."""
    if not shutil.which("dpkg-shlibdeps"):
        raise PackagingError("dpkg-shlibdeps is missing, expected the Debian package dpkg-dev")
    root = work / "root"
    usr = root / "usr"
    debianise(usr, version, epoch)
    files = sorted(path for path in usr.rglob("*") if path.is_file() and not path.is_symlink())
    control = root / "DEBIAN"
    control.mkdir()
    kilobytes = sum((path.stat().st_size + 1023) // 1024 for path in files)
    (control / "control").write_text(CONTROL.format(version=version, maintainer=MAINTAINER, kilobytes=kilobytes,
                                                    depends=depends(work, usr), summary=SUMMARY))
    (control / "md5sums").write_text("".join(
        f"{hashlib.md5(path.read_bytes(), usedforsecurity=False).hexdigest()}  {path.relative_to(root)}\n" for path in files))
    (control / "shlibs").write_text(f"libsparkinfer {version.split('.')[0]} sparkinfer (>= {version})\n")
    (control / "triggers").write_text("activate-noawait ldconfig\n")
    for path in [control, *control.iterdir()]:
        path.chmod(0o755 if path.is_dir() else 0o644)
    package = folder / f"sparkinfer_{version}_amd64.deb"
    subprocess.run(["dpkg-deb", "--root-owner-group", "-Zxz", "--build", root, package], check=True, stdout=subprocess.DEVNULL,
                   env={**os.environ, "SOURCE_DATE_EPOCH": str(epoch)})
    return package
