"""The extension ``_native`` for macOS arm64, from the project's own ``CMakeLists.txt``."""

from __future__ import annotations

import sys
import sysconfig
from pathlib import Path

from . import cmake
from .mlx_wheels import mlx_for_macos
from .sdk import macos_sdk
from .tools import CACHE, ROOT, program, python_package

TOOLCHAIN = Path(__file__).parent / "macos.cmake"
FOLDER = CACHE / "macos"
SOABI = f"cpython-{sys.version_info.major}{sys.version_info.minor}-darwin"
TOOLS = {"clang++-22": "clang-22", "ld64.lld-22": "lld-22", "llvm-ar-22": "llvm-22"}


def build_for_macos() -> Path:
    """Compiles and links what has changed; the library's path. Raises ``cmake.BuildError``."""
    for name, package in TOOLS.items():
        program(name, package)
    python_package("nanobind")
    options = {
        "CMAKE_TOOLCHAIN_FILE": TOOLCHAIN,
        "POMONA_MACOS_SDK": macos_sdk(),
        "MLX_DIR": mlx_for_macos() / "share" / "cmake" / "MLX",
        "Python_EXECUTABLE": sys.executable,
        # This machine's: the headers differ in a handful of sizes that no source here reads.
        "Python_INCLUDE_DIR": sysconfig.get_path("include"),
        "SKBUILD_SOABI": SOABI,
    }
    cmake.build(ROOT, FOLDER, "_native", options)
    return FOLDER / f"_native.{SOABI}.so"


def flags() -> list[str]:
    """What the compiler is told for a library of one source that needs nobody but the system."""
    target = ["--target=arm64-apple-macosx", "-mmacosx-version-min=14.0"]
    checks = ["-Werror=unguarded-availability", "-fno-sized-deallocation"]
    link = ["-fuse-ld=lld", "--ld-path=ld64.lld-22"]
    return [*target, f"-isysroot{macos_sdk()}", "-std=c++20", *checks, *link]
