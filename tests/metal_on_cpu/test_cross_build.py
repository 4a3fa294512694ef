"""The extension compiles and links for macOS arm64, and asks for nothing that a Mac lacks."""

from __future__ import annotations

import ctypes
import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.metal_on_cpu.cross_build import macho, native, sdk
from tests.metal_on_cpu.cross_build.mlx_wheels import PLATFORM
from tests.metal_on_cpu.cross_build.tools import ROOT, python_package
from tests.support.wheel.build import build_wheel

CSRC = ROOT / "backend_metal" / "csrc"
LIBMLX = "@rpath/libmlx.dylib"
# Built on Linux or on x86 only.
NOT_FOR_MACS = {"cpu/gemm/interpose.cpp"}
NOT_FOR_MACS |= {"cpu/gemm/kernels/avx2.cpp", "cpu/gemm/kernels/avx512.cpp"}
NOT_FOR_MACS |= {"cpu/kernels/avx2.cpp", "cpu/kernels/avx512.cpp"}


@pytest.fixture(scope="module")
def library() -> macho.Library:
    return macho.read(native.build_for_macos())


@pytest.fixture(scope="module")
def libmlx() -> macho.Library:
    return macho.read(sdk.mlx_libraries()[0])


def test_every_source_is_compiled(library: macho.Library) -> None:
    commands = json.loads((native.FOLDER / "compile_commands.json").read_text())
    files = {Path(command["file"]).resolve() for command in commands}
    together = [path.read_text() for path in files if path.parent.name == "Unity"]
    included = re.findall(r'#include "([^"]+\.cpp)"', "\n".join(together))
    compiled = files | {Path(file).resolve() for file in included}
    sources = {*CSRC.rglob("*.cpp")}
    left_out = {str(path.relative_to(CSRC)) for path in sources - compiled}
    assert left_out == NOT_FOR_MACS


def test_it_runs_where_mlx_runs(library: macho.Library, libmlx: macho.Library) -> None:
    assert library.architecture == libmlx.architecture == "ARM64"
    assert library.minimum_macos == libmlx.minimum_macos == (14, 0, 0)


def test_the_loader_finds_its_libraries(library: macho.Library, libmlx: macho.Library) -> None:
    # dyld compares a path under @rpath with the install names of what is loaded already, and
    # backend_metal/native.py loads MLX first: so no run path has to lead there.
    assert libmlx.install_name == LIBMLX
    assert LIBMLX in library.dependencies
    of_mlx = {name for path in sdk.mlx_libraries() for name in macho.read(path).dependencies}
    assert set(library.dependencies) <= of_mlx
    assert not [path for path in library.run_paths if path.startswith("/")]


def test_mlx_exports_what_it_imports(library: macho.Library, libmlx: macho.Library) -> None:
    wanted = library.imports[LIBMLX]
    assert len(wanted) > 20
    assert wanted <= libmlx.exports


def test_the_system_has_what_it_imports(library: macho.Library) -> None:
    # libSystem's own stub was linked; of the other libraries only what MLX imports is known.
    imported = sdk.imported_by_mlx()
    assert {sdk.LIBSYSTEM, sdk.LIBCXX} <= library.imports.keys()
    for name in library.imports.keys() - {LIBMLX, sdk.LIBSYSTEM, macho.ANYWHERE}:
        assert library.imports[name] <= imported[name], name


def test_python_has_the_rest(library: macho.Library) -> None:
    symbols = library.imports[macho.ANYWHERE]
    cxx = {symbol for symbol in symbols if symbol.startswith("__Z")}
    assert cxx <= sdk.imported_by_mlx()[sdk.LIBCXX]
    names = {symbol.removeprefix("_") for symbol in symbols - cxx}
    assert len(names) > 20
    assert not [name for name in names if not hasattr(ctypes.pythonapi, name)]
    allowed = (python_package("nanobind") / "cmake" / "darwin-ld-cpython.sym").read_text().split()
    assert {f"_{name}" for name in names} <= set(allowed)


def test_it_exports_only_its_module(library: macho.Library) -> None:
    assert library.exports == {"_PyInit__native"}


def test_pip_on_a_mac_would_take_its_wheel(library: macho.Library, tmp_path: Path) -> None:
    """Which has the extension and its shaders; that it runs is for a Mac to show."""
    libraries = tmp_path / "libraries"
    libraries.mkdir()
    shutil.copy(native.FOLDER / f"_native.{native.SOABI}.so", libraries)
    tag = f"cp{sys.version_info.major}{sys.version_info.minor}"
    platform = f"macosx_{library.minimum_macos[0]}_{library.minimum_macos[1]}_arm64"
    wheel = build_wheel(tmp_path, libraries, f"{tag}-{tag}-{platform}")
    target = tmp_path / "target"
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-index"]
    pip += ["--only-binary=:all:", f"--platform={PLATFORM}", f"--target={target}"]
    subprocess.run([*pip, str(wheel)], check=True)
    package = target / "backend_metal"
    assert [path.name for path in package.glob("*.so")] == [f"_native.{native.SOABI}.so"]
    shaders = CSRC.parent / "shaders"
    assert {path.name for path in (package / "shaders").rglob("*.metal")} == {
        path.name for path in shaders.rglob("*.metal")
    }


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("#include <cstdlib>\nint f() { return std::abs(-1); }", None),
        # In libc++ for long, but MLX does without.
        (
            '#include <regex>\nbool f() { return std::regex_match("a", std::regex("a")); }',
            "undefined symbol",
        ),
        ('extern "C" int PyMissing(); int f() { return PyMissing(); }', "undefined symbol"),
        # Of macOS 15.
        (
            "#include <math.h>\nfloat f(_Float16 x) { return __sqrtf16(x); }",
            "only available on macOS 15",
        ),
        # Of a later libc++ than macOS 14's.
        (
            "#include <charconv>\n"
            "auto f(const char* p, double& x) { return std::from_chars(p, p + 1, x).ec; }",
            "is unavailable",
        ),
    ],
)
def test_it_would_notice(source: str, complaint: str | None, tmp_path: Path) -> None:
    file = tmp_path / "source.cpp"
    file.write_text(source)
    command = ["clang++-22", *native.flags(), "-shared", file, "-o", tmp_path / "library.dylib"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if complaint is None:
        assert finished.returncode == 0, finished.stderr
    else:
        assert finished.returncode != 0
        assert complaint in finished.stderr
