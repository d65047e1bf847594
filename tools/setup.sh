#!/bin/sh
# setup.sh — what a fresh Debian 12+ or Ubuntu 24.04+ machine needs, installed only where it is missing.
# Usage: tools/setup.sh run|test|check     each level includes the one before it
#   run    compiler, CMake, libraries, cargo, the pinned Python environment .venv
#   test   + GoogleTest; Chromium and Node for the web page
#   check  + clang 19: sanitizers, clang-tidy, clang-format; npm, HAProxy
# Looks before it acts: with everything in place it calls neither apt nor pip and is silent (~0.1 s).
set -eu
cd "$(dirname "$0")/.."
level=${1:-run}
case $level in run | test | check) ;; *) echo "usage: tools/setup.sh run|test|check" >&2; exit 2 ;; esac

say() { echo "setup: $*" >&2; }
have() { command -v "$1" >/dev/null 2>&1; }
installed() { [ "$(dpkg-query -W -f='${db:Status-Status}' "$1" 2>/dev/null)" = installed ]; }
offered() { apt-cache policy "$1" 2>/dev/null | grep -q 'Candidate: [^(]'; }
missing=""
need() { missing="$missing $1"; }
need_command() { have "$1" || need "$2"; }    # a tool may come from anywhere, so the command counts, not the package
need_library() { installed "$1" || need "$1"; }

# Boost.JSON of 1.81 or newer; distributions put the version into the package's name.
boost_versions="1.81 1.83 1.88 1.90"
boost_installed() {
    for v in $boost_versions; do
        if installed "libboost$v-dev" && installed "libboost-json$v-dev"; then return 0; fi
    done
    return 1
}
boost_packages() {
    for v in $boost_versions; do
        if offered "libboost-json$v-dev"; then echo "libboost$v-dev libboost-json$v-dev"; return; fi
    done
    if grep -q bookworm /etc/os-release 2>/dev/null; then v=1.81; else v=1.83; fi
    echo "libboost$v-dev libboost-json$v-dev"
}

have_chromium() { have chromium || have chromium-browser || have google-chrome; }

find_missing() {
    missing=""
    if ! have c++ || ! have make; then need build-essential; fi
    need_command cmake cmake
    need_command ninja ninja-build
    need_command ccache ccache
    need_command mold mold
    python3 -c 'import venv, ensurepip' 2>/dev/null || need python3-venv
    [ -e /etc/ssl/certs/ca-certificates.crt ] || need ca-certificates
    boost_installed || need "$(boost_packages)"
    for p in libfmt-dev libcli11-dev libssl-dev; do need_library $p; done
    [ "$level" = run ] && return
    need_library libgtest-dev
    need_command node nodejs
    # 124 MB to fetch, 415 MB on disk, a minute at most; Ubuntu's package has another name.
    have_chromium || need "$(offered chromium && echo chromium || echo chromium-browser)"
    need_command zsh zsh                       # completion is tried in each shell
    need_command fish fish
    need_command groff groff-base              # the man page is rendered
    [ "$level" = test ] && return
    need_command git git
    need_command clang++-19 clang-19
    need_command ld.lld-19 lld-19
    need_command clang-tidy-19 clang-tidy-19
    need_command clang-format-19 clang-format-19
    need_command llvm-symbolizer-19 llvm-19    # names in the sanitizers' stack traces
    need_library libclang-rt-19-dev
    need_command npm npm                       # coding agents, for tests/agents
    PATH="$PATH:/usr/sbin" need_command haproxy haproxy
}

# How to become root: sets $root, or says what to run by hand and fails.
find_root() {
    command="apt-get update && apt-get install -y --no-install-recommends$missing"
    root=""
    [ "$(id -u)" = 0 ] && return 0
    if have sudo && { sudo -n true 2>/dev/null || [ -t 0 ]; }; then
        root=sudo
        return 0
    fi
    say "missing packages:$missing"
    if have sudo; then
        say "they need root, and sudo cannot ask for a password here. Run once:  sudo sh -c '$command'"
    else
        say "they need root, and this machine has no sudo. Run once:  su -c '$command'"
    fi
    return 1
}

apt="apt-get -y -q -o Acquire::Retries=5 -o DPkg::Lock::Timeout=300"
install_missing() {
    say "installing$missing"
    # Package lists may be old or absent: refresh, then choose names again by what is offered.
    # shellcheck disable=SC2086
    $root $apt update >/dev/null || say "apt-get update reported an error; going on with the lists at hand"
    find_missing
    # --no-remove: a package of yours that conflicts is never taken away silently.
    # shellcheck disable=SC2086
    if ! $root env DEBIAN_FRONTEND=noninteractive $apt install --no-install-recommends --no-remove $missing </dev/null; then
        say "apt-get could not install:$missing"
        say "sparkinfer is built on Debian 12+ and Ubuntu 24.04+. Look at the message above, then run:  $command"
        return 1
    fi
}

# Rust: distributions' own compilers are often too old, so rustup's is looked for as well.
check_cargo() {
    PATH="$PATH:${CARGO_HOME:-${HOME:-}/.cargo}/bin"
    hint="curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh -s -- -y --profile minimal"
    have curl || hint="apt-get update && apt-get install -y curl && $hint"
    version=$(cargo --version 2>/dev/null | cut -d' ' -f2) || true
    case $version in
        "") say "cargo >= 1.87 is missing. Run once:  $hint"; return 1 ;;
        0.* | 1.?.* | 1.[0-7]?.* | 1.8[0-6].*)
            say "cargo $version is too old, 1.87 or newer is needed. Run once:  $hint"; return 1 ;;
    esac
}

have python3 || { say "python3 is missing. Run once:  apt-get install -y python3 python3-venv   (as root)"; exit 1; }
cargo_ok=yes
check_cargo || cargo_ok=no
if have dpkg-query && have apt-get; then
    find_missing
    [ -z "$missing" ] || find_root || exit 1
    [ $cargo_ok = yes ] || exit 1
    [ -z "$missing" ] || install_missing
elif ! have c++ || ! have cmake || ! have ninja; then
    say "this is no Debian or Ubuntu system. Needed: a C++20 compiler, cmake >= 3.25, ninja, Boost >= 1.81 with JSON, OpenSSL >= 3.0, fmt, CLI11"
    exit 1
fi
[ $cargo_ok = yes ] || exit 1

# The pinned Python environment: rebuilt only when its list of pins or the interpreter behind it changed.
stamp=.venv/.requirements
if ! cmp -s tools/requirements.txt $stamp || ! .venv/bin/python -c '' 2>/dev/null; then
    say "making the Python environment .venv from tools/requirements.txt"
    .venv/bin/python -m pip --version >/dev/null 2>&1 || { rm -rf .venv; python3 -m venv .venv; }
    if ! .venv/bin/python -m pip install -q --disable-pip-version-check --retries 5 -r tools/requirements.txt </dev/null; then
        say "pip could not install tools/requirements.txt into .venv (message above). Try again:  make setup"
        exit 1
    fi
    cp tools/requirements.txt $stamp
fi
