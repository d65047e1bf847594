"""Risk: what is installed does not run away from the source tree, lacks a file or a licence, or is another one each time."""

import re
import subprocess
import tarfile
import zipfile

import pytest

RUN = ("-n", 4, "--temp", 0, "-p", "Hello")
FILES = ("bin/sparkinfer", "include/sparkinfer.h", "lib/libsparkinfer.so", "lib/pkgconfig/sparkinfer.pc",
         "lib/cmake/sparkinfer/sparkinfer-config.cmake", "share/bash-completion/completions/sparkinfer",
         "share/fish/vendor_completions.d/sparkinfer.fish", "share/doc/sparkinfer/README.md")


@pytest.fixture(scope="module")
def expected(binary, tiny, clean):
    """What the program under test answers, and its version."""
    return clean(binary, "run", tiny, *RUN), clean(binary, "--version").splitlines()[0]


def works(clean, program, tiny, expected):
    assert (clean(program, "run", tiny, *RUN), clean(program, "--version").splitlines()[0]) == expected


def test_the_installed_tree_is_whole_and_runs(tree, clean, tiny, expected):
    for name in (*FILES, "share/man/man1/sparkinfer.1", "share/zsh/site-functions/_sparkinfer",
                 "share/doc/sparkinfer/LICENSE", "share/doc/sparkinfer/THIRD-PARTY-NOTICES"):
        assert (tree / name).stat().st_size > 0, name
    works(clean, tree / "bin" / "sparkinfer", tiny, expected)
    assert (tree / "share/zsh/site-functions/_sparkinfer").read_text().startswith("#compdef sparkinfer")


def test_the_notices_name_every_crate_and_library(tree, request):
    notices = (tree / "share/doc/sparkinfer/THIRD-PARTY-NOTICES").read_text()
    lock = (request.config.rootpath / "rust/text/Cargo.lock").read_text()
    for library in ("Boost", "fmt", "CLI11", "OpenSSL", "libstdc++"):
        assert re.search(rf"^{re.escape(library)}.*\(", notices, re.MULTILINE), library
    for crate in ("tokenizers", "minijinja", "minijinja-contrib", "llguidance", "toktrie", "serde_json", "regex-syntax"):
        version = re.search(rf'name = "{crate}"\nversion = "([^"]+)"', lock).group(1)
        assert f"\n{crate} {version} (crate): " in notices, crate
    assert "Permission is hereby granted, free of charge" in notices and "Apache License" in notices


def test_c_programs_find_the_library(tree, clean, tiny, tmp_path, request):
    """pkg-config where there is one, and CMake: the example of the docs, from the moved tree."""
    page = (request.config.rootpath / "docs" / "embedding.md").read_text()
    (tmp_path / "example.c").write_text(re.search(r"```c\n(.*?)```", page, re.DOTALL).group(1))
    (tmp_path / "CMakeLists.txt").write_text(
        "cmake_minimum_required(VERSION 3.16)\nproject(example C)\nset(CMAKE_C_STANDARD 11)\n"
        "set(CMAKE_C_FLAGS \"-Wall -Wextra -Werror -pedantic\")\nfind_package(sparkinfer 0.1 REQUIRED)\n"
        "add_executable(example example.c)\ntarget_link_libraries(example sparkinfer::sparkinfer)\n")
    clean("cmake", "-S", tmp_path, "-B", tmp_path / "build", f"-DCMAKE_PREFIX_PATH={tree}")
    clean("cmake", "--build", tmp_path / "build")
    out = clean(tmp_path / "build" / "example", cwd=tiny.parent)
    assert out.splitlines()[-1] in ("stop", "length") and len(out) > 10

    words = (tree / "lib/pkgconfig/sparkinfer.pc").read_text()
    values = {"pcfiledir": str(tree / "lib/pkgconfig")}
    for name, value in re.findall(r"^(\w+)=(.*)$", words, re.MULTILINE):
        values[name] = re.sub(r"\$\{(\w+)\}", lambda m: values[m[1]], value)
    flags = [re.sub(r"\$\{(\w+)\}", lambda m: values[m[1]], word)
             for line in re.findall(r"^(?:Libs|Cflags): (.*)$", words, re.MULTILINE) for word in line.split()]
    clean("cc", "-o", tmp_path / "by_hand", tmp_path / "example.c", *flags)
    assert clean(tmp_path / "by_hand", cwd=tiny.parent, LD_LIBRARY_PATH=str(tree / "lib")) == out


def test_the_tarball_runs_from_any_folder(packages, clean, tiny, expected, tmp_path):
    archive, = packages.glob("*.tar.gz")
    folder = tmp_path / "wo anders"
    with tarfile.open(archive) as tar:
        assert all(entry.uid == 0 and not entry.name.startswith(("/", "..")) for entry in tar)
        tar.extractall(folder, filter="data")
    root, = folder.iterdir()
    for name in FILES:
        assert (root / name).exists(), name
    works(clean, root / "bin" / "sparkinfer", tiny, expected)
    works(clean, root.rename(tmp_path / "moved") / "bin" / "sparkinfer", tiny, expected)


def test_the_wheel_says_what_it_needs(packages, installed_wheel, clean, tiny, expected):
    wheel, = packages.glob("*.whl")
    tag = re.fullmatch(r"sparkinfer-[0-9.]+-py3-none-manylinux_2_(\d+)_x86_64\.whl", wheel.name)
    with zipfile.ZipFile(wheel) as contents:
        names = contents.namelist()
        library = contents.read("sparkinfer/libsparkinfer.so")
    newest = max(int(found) for found in re.findall(rb"GLIBC_2\.(\d+)", library))
    assert tag and int(tag.group(1)) >= newest
    assert any(name.endswith("licenses/THIRD-PARTY-NOTICES") for name in names)
    works(clean, installed_wheel / "sparkinfer", tiny, expected)
    freeze = clean(installed_wheel / "pip", "list", "--format=freeze")
    assert "sparkinfer==" in freeze
    assert clean(installed_wheel / "pip", "show", "--files", "sparkinfer").count("sparkinfer/_model.py") == 1


def test_the_debian_package_has_what_debian_wants(packages, clean, tiny, expected, tmp_path):
    deb, = packages.glob("*.deb")
    fields = clean("dpkg-deb", "--field", deb)
    assert re.search(r"^Depends: libc6 \(>= 2\.\d+\)$", fields, re.MULTILINE), fields
    assert "Architecture: amd64" in fields
    clean("dpkg-deb", "--extract", deb, tmp_path / "root")
    usr = tmp_path / "root" / "usr"
    for name in (*FILES, "share/man/man1/sparkinfer.1.gz", "share/zsh/vendor-completions/_sparkinfer",
                 "share/doc/sparkinfer/copyright", "share/doc/sparkinfer/changelog.gz"):
        assert (usr / name).exists(), name
    listing = clean("dpkg-deb", "--contents", deb)
    for line in listing.splitlines():
        assert re.match(r"(drwxr-xr-x|-rwxr-xr-x|-rw-r--r--|lrwxrwxrwx) root/root ", line), line
    works(clean, usr / "bin" / "sparkinfer", tiny, expected)


def test_the_same_build_gives_the_same_bytes(packages, make_packages, tmp_path):
    again = make_packages(tmp_path / "again")
    assert (again / "SHA256SUMS").read_text() == (packages / "SHA256SUMS").read_text()
    checked = subprocess.run(["sha256sum", "--check", "SHA256SUMS"], cwd=packages, capture_output=True, text=True, check=True)
    assert checked.stdout.count(": OK") == 3
