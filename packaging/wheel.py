"""The wheel: the program as the command `sparkinfer`, the library, and the Python module over it."""

import base64
import hashlib
import time
import zipfile

from tree import ROOT, SUMMARY, needed_libc

METADATA = """Metadata-Version: 2.1
Name: sparkinfer
Version: {version}
Summary: {summary}
License: MIT
Requires-Python: >=3.9
Requires-Dist: numpy>=1.22
Description-Content-Type: text/markdown

"""
WHEEL = """Wheel-Version: 1.0
Generator: sparkinfer
Root-Is-Purelib: false
Tag: {tag}
"""


def contents(tree, version, tag):
    """(name, bytes, mode) of every file but RECORD."""
    info = f"sparkinfer-{version}.dist-info"
    for path in sorted((ROOT / "python" / "sparkinfer").iterdir()):
        if path.suffix == ".py" or path.name == "py.typed":
            yield f"sparkinfer/{path.name}", path.read_bytes(), 0o644
    yield "sparkinfer/libsparkinfer.so", (tree / "lib" / "libsparkinfer.so").read_bytes(), 0o755
    yield f"sparkinfer-{version}.data/scripts/sparkinfer", (tree / "bin" / "sparkinfer").read_bytes(), 0o755
    for name in ("LICENSE", "THIRD-PARTY-NOTICES"):
        yield f"{info}/licenses/{name}", (tree / "share" / "doc" / "sparkinfer" / name).read_bytes(), 0o644
    description = (ROOT / "docs" / "embedding.md").read_text()
    yield f"{info}/METADATA", (METADATA.format(version=version, summary=SUMMARY) + description).encode(), 0o644
    yield f"{info}/WHEEL", WHEEL.format(tag=tag).encode(), 0o644


def make_wheel(tree, folder, version, epoch):
    """Writes the wheel of an installed tree; returns its path. Its tag names the oldest glibc that it works with."""
    libc = max(needed_libc(tree / "bin" / "sparkinfer"), needed_libc((tree / "lib" / "libsparkinfer.so").resolve()))
    tag = f"py3-none-manylinux_{libc[0]}_{libc[1]}_x86_64"
    path = folder / f"sparkinfer-{version}-{tag}.whl"
    record = []
    date = time.gmtime(max(epoch, 315532800))[:6]    # zip knows no time before 1980
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=6) as wheel:
        def add(name, data, mode):
            entry = zipfile.ZipInfo(name, date)
            entry.external_attr = (0o100000 | mode) << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, data)

        for name, data, mode in contents(tree, version, tag):
            add(name, data, mode)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            record.append(f"{name},sha256={digest},{len(data)}\n")
        name = f"sparkinfer-{version}.dist-info/RECORD"
        add(name, ("".join(record) + f"{name},,\n").encode(), 0o644)
    return path
