#!/usr/bin/env python3
"""Makes the packages of a build: a .deb, a tarball that runs from any folder, a wheel, and SHA256SUMS over them.

Usage: packaging/packages.py BUILD OUT [deb|tarball|wheel]…      BUILD has `sparkinfer` and `libsparkinfer`; default: all three

The same build gives the same bytes: everything is dated with SOURCE_DATE_EPOCH, or the commit's time. Needs no network.
"""

import argparse
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from deb import make_deb  # noqa: E402
from tree import PackagingError, epoch, install, needed_libc, sha256, tar_gz, version  # noqa: E402
from wheel import make_wheel  # noqa: E402

KINDS = ("deb", "tarball", "wheel")


def make_tarball(tree, folder):
    needed_libc(tree / "bin" / "sparkinfer")    # refuses what is not on every system
    name = f"sparkinfer-{version()}-linux-x86_64"
    path = folder / f"{name}.tar.gz"
    path.write_bytes(tar_gz(tree, name, epoch()))
    return path


def make(kind, build, folder):
    with tempfile.TemporaryDirectory() as temporary:
        work = Path(temporary)
        if kind == "deb":
            install(build, work / "root", "/usr")
            return make_deb(work, folder, version(), epoch())
        tree = install(build, work / "root", "/sparkinfer")
        return make_tarball(tree, folder) if kind == "tarball" else make_wheel(tree, folder, version(), epoch())


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("build", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("kinds", nargs="*", choices=[*KINDS, []], default=[], metavar="KIND")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    try:
        made = [make(kind, args.build.resolve(), args.out.resolve()) for kind in args.kinds or KINDS]
    except PackagingError as error:
        sys.exit(f"packages: {error}")
    sums = "".join(f"{sha256(path)}  {path.name}\n" for path in made)
    (args.out / "SHA256SUMS").write_text(sums)
    print(sums, end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
