"""What the packages share: an installed tree, facts of its binaries, and archives that are the same bytes each time."""

import hashlib
import io
import gzip
import os
import re
import subprocess
import tarfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIBC = {"libc.so.6", "libm.so.6", "libpthread.so.0", "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2"}
SUMMARY = "Runs language models from their files"


class PackagingError(Exception):
    """One sentence for the person who makes packages."""


def output_of(*command, **more):
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False, **more)
    if done.returncode != 0:
        raise PackagingError(f"{' '.join(map(str, command))} ended with {done.returncode}: {done.stderr.strip()[-500:]}")
    return done.stdout


def version():
    return re.search(r"project\(sparkinfer VERSION ([0-9.]+)", (ROOT / "CMakeLists.txt").read_text()).group(1)


def epoch():
    """Seconds since 1970 that every file of a package is dated with: SOURCE_DATE_EPOCH, else the commit's time."""
    given = os.environ.get("SOURCE_DATE_EPOCH")
    return int(given or output_of("git", "-C", ROOT, "log", "-1", "--format=%ct"))


def install(build, destination, prefix):
    """The installed tree below destination + prefix: stripped, with the modes that a package has whatever the umask is."""
    output_of("cmake", "--install", build, "--prefix", prefix, "--strip", env={**os.environ, "DESTDIR": str(destination)})
    for path in [destination, *destination.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.parent.name == "bin" else 0o644)
    return destination / prefix.lstrip("/")


def needed_libc(binary):
    """The oldest glibc that a binary starts with, as (2, minor). Anything but libc that it needs is an error."""
    dynamic = output_of("objdump", "-p", binary)
    others = set(re.findall(r"NEEDED\s+(\S+)", dynamic)) - LIBC
    if others:
        raise PackagingError(f"{binary.name} needs {', '.join(sorted(others))}, expected nothing but libc")
    return max((tuple(map(int, found)) for found in re.findall(r"GLIBC_(\d+)\.(\d+)", dynamic)), default=(2, 17))


def tar_gz(root, name, time):
    """A tree as the bytes of name.tar.gz: in order, of nobody in particular, everything dated the same."""
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w", format=tarfile.GNU_FORMAT) as archive:
        for path in [root, *sorted(root.rglob("*"))]:
            entry = archive.gettarinfo(str(path), str(Path(name, path.relative_to(root))))
            entry.uid = entry.gid = 0
            entry.uname = entry.gname = "root"
            entry.mtime = time
            with path.open("rb") if entry.isreg() else io.BytesIO() as data:
                archive.addfile(entry, data if entry.isreg() else None)
    return gzip.compress(plain.getvalue(), 6, mtime=0)


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()
