#!/usr/bin/env python3
"""Writes the notices of everything that is inside the program and the library: licences of crates and of static libraries.

Usage: packaging/notices.py OUT        cargo has fetched rust/text's crates, and Debian's packages are installed (`make setup`)

A text that several have stands once, below those that have it.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
NAMES = ("LICENSE", "LICENCE", "COPYING", "NOTICE", "UNLICENSE", "COPYRIGHT")
RUST = ("The Rust standard library: MIT or Apache-2.0, copyright The Rust Project Contributors "
        "(https://www.rust-lang.org/policies/licenses). The text of the Apache licence stands below.")
# Debian's package of each library that is linked in or compiled in as headers, by a file of it.
LIBRARIES = {"Boost": "/usr/include/boost/version.hpp", "fmt": "/usr/include/fmt/core.h", "CLI11": "/usr/include/CLI/CLI.hpp",
             "OpenSSL": "/usr/include/openssl/ssl.h"}


def output_of(*command):
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout


def cargo():
    found = shutil.which("cargo") or shutil.which("cargo", path=str(Path.home() / ".cargo" / "bin"))
    if not found:
        sys.exit("notices.py: cargo is not to be found; expected on PATH or in ~/.cargo/bin")
    return found


def crates():
    """(name and licence, texts) of every crate of rust/text, build scripts' and other systems' left out by cargo's filter."""
    found = json.loads(output_of(cargo(), "metadata", "--offline", "--locked", "--format-version", "1",
                                 "--filter-platform", "x86_64-unknown-linux-gnu", "--manifest-path", "rust/text/Cargo.toml"))
    for package in sorted(found["packages"], key=lambda p: (p["name"], p["version"])):
        if package["source"] is None:
            continue    # ours
        folder = Path(package["manifest_path"]).parent
        texts = [path.read_text(encoding="utf-8", errors="replace").strip() for path in sorted(folder.iterdir())
                 if path.is_file() and path.name.upper().startswith(NAMES)]
        title = f"{package['name']} {package['version']} (crate): {package['license']}"
        yield title, texts or [f"No licence file in the crate; its authors: {', '.join(package['authors']) or 'not named'}; "
                               f"{package['repository']}"]


def boost_licence(text):
    """The licence alone of Debian's file, which lists the holders of two hundred libraries: of Boost in a program's object code it
    asks for no notice."""
    return next(part for part in text.split("\n\n") if part.startswith("License: BSL-1.0\n "))


def libraries():
    """(name and version, its copyright file) of the C++ libraries; where there is no dpkg, what can be said without."""
    compiler = output_of("c++", "-print-file-name=libstdc++.a").strip()
    for name, file in {**LIBRARIES, "libstdc++ and libgcc": os.path.realpath(compiler)}.items():
        owner = subprocess.run(["dpkg-query", "-S", file], capture_output=True, text=True, check=False) \
            if shutil.which("dpkg-query") else None
        if owner is None or owner.returncode != 0:
            yield f"{name}: of this system, see its own notices", []
            continue
        package = owner.stdout.split(":")[0]
        version = output_of("dpkg-query", "-W", "-f", "${Version}", package)
        text = Path("/usr/share/doc", package, "copyright").read_text(encoding="utf-8", errors="replace")
        yield f"{name} (Debian's {package} {version})", [boost_licence(text) if name == "Boost" else text.strip()]


def main():
    by_text = {}
    for title, texts in [*libraries(), *crates()]:
        for text in texts or [""]:
            by_text.setdefault(text, []).append(title)
    text = ("Third-party software inside sparkinfer\n\nsparkinfer itself is under the MIT licence (LICENSE). The program and the library "
            f"hold, besides:\n\n{RUST}\n")
    for licence, titles in by_text.items():
        text += "\n" + "=" * 100 + "\n" + "\n".join(titles) + "\n" + ("-" * 100 + "\n" + licence + "\n" if licence else "")
    Path(sys.argv[1]).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
