#!/usr/bin/env bash
# ops/setup.sh [EXTRA ...]: installs what serving needs, and the named extras of pyproject.toml, into
# .venv, in the versions of ops/constraints.txt. `make setup` calls it and builds the extension after it.
# PYTHON= names the interpreter; without it any of 3.11 to 3.13 is taken.
set -euo pipefail
cd "$(dirname "$0")/.."
venv=.venv
system=$(uname -s)

say() { printf '%s\n' "$*"; }
fail() {
    say "$*" >&2
    exit 1
}

usable="Python 3.11, 3.12 or 3.13 with its headers and venv (on Debian: python3-dev and python3-venv)"

is_supported() {
    "$1" -c 'import ensurepip, pathlib, sys, sysconfig
header = pathlib.Path(sysconfig.get_path("include"), "Python.h")
sys.exit(not ((3, 11) <= sys.version_info[:2] <= (3, 13) and header.exists()))' 2>/dev/null
}

find_python() {
    local candidate
    for candidate in python3 python3.{13,12,11} {/opt/homebrew,/usr/local}/bin/python3.{13,12,11}; do
        if is_supported "$candidate"; then
            command -v "$candidate"
            return
        fi
    done
    return 1
}

check_compiler() {
    # The stub in /usr/bin opens a dialog instead of compiling.
    if [ "$system" = Darwin ] && ! xcode-select -p >/dev/null 2>&1; then
        fail "Apple's command line tools are missing: run xcode-select --install, then this again."
    fi
    command -v "${CXX:-c++}" >/dev/null || fail "A C++ compiler is missing: install g++ or clang, or set CXX."
}

make_environment() {
    local python=${PYTHON:-}
    if [ -n "$python" ]; then
        is_supported "$python" || fail "PYTHON=$python is not $usable."
    elif ! python=$(find_python); then
        if command -v uv >/dev/null; then
            python=3.12 # uv downloads it.
        elif command -v brew >/dev/null; then
            say "Installing Python 3.12 with Homebrew."
            brew install --quiet python@3.12
            python=$(brew --prefix python@3.12)/bin/python3.12
        else
            fail "There is no $usable: install it, or uv (https://docs.astral.sh/uv), or set PYTHON."
        fi
    fi
    say "Making the Python environment $venv with $python."
    if command -v uv >/dev/null; then
        uv venv --quiet --allow-existing --python "$python" "$venv"
    else
        "$python" -m venv "$venv"
    fi
}

find_uv() {
    if command -v uv; then return; fi
    [ -x "$venv/bin/uv" ] ||
        "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --constraint ops/constraints.txt uv >&2
    say "$venv/bin/uv"
}

# Which MLX goes in: Metal's is in the plain wheel on macOS.
device_extra() {
    if [ "$system" = Darwin ]; then return; fi
    if nvidia-smi -L >/dev/null 2>&1; then say cuda13; else say cpu; fi
}

check_compiler
[ -x "$venv/bin/python" ] || make_environment
uv=$(find_uv)
extras=()
for extra in build $(device_extra) "$@"; do extras+=(--extra "$extra"); done
quiet=()
[ -t 2 ] || quiet=(--quiet)
say "Installing Python packages: serving, ${extras[*]//--extra/with}. About 600 MB, from PyPI unless they are cached."
"$uv" pip install ${quiet[@]+"${quiet[@]}"} --python "$venv/bin/python" --requirements pyproject.toml "${extras[@]}" \
    --constraints ops/constraints.txt
# The extension is built by CMake directly, which shows how far it is.
"$uv" pip install --quiet --python "$venv/bin/python" --no-deps --no-build-isolation --editable . \
    --config-settings wheel.cmake=false
