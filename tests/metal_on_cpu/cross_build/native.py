"""The extension ``_native`` for macOS arm64, from the project's own ``CMakeLists.txt``."""

from __future__ import annotations

import subprocess
import sys
import sysconfig
from pathlib import Path

from .mlx_wheels import mlx_for_macos
from .sdk import macos_sdk
from .tools import CACHE, ROOT, program

TOOLCHAIN = Path(__file__).parent / "macos.cmake"
FOLDER = CACHE / "macos"
MODULE = f"_native.cpython-{sys.version_info.major}{sys.version_info.minor}-darwin.so"
TOOLS = {"clang++-22": "clang-22", "ld64.lld-22": "lld-22", "llvm-ar-22": "llvm-22"}


class BuildError(RuntimeError):
    """The compiler's or the linker's own words."""


def build_for_macos() -> Path:
    """Configure, compile and link, as far as something has changed; the library's path.

    Raises ``BuildError``.
    """
    for name, package in (
        ("clang++-22", "clang-22"),
        ("ld64.lld-22", "lld-22"),
        ("llvm-ar-22", "llvm-22"),
    ):
        program(name, package)
    options = {
        "CMAKE_TOOLCHAIN_FILE": TOOLCHAIN,
        "CMAKE_MAKE_PROGRAM": Path(sys.executable).parent / "ninja",
        "POMONA_MACOS_SDK": macos_sdk(),
        "MLX_DIR": mlx_for_macos() / "share" / "cmake" / "MLX",
        "Python_EXECUTABLE": sys.executable,
        # This machine's: the headers differ in a handful of sizes that no source here reads.
        "Python_INCLUDE_DIR": sysconfig.get_path("include"),
        "CMAKE_EXPORT_COMPILE_COMMANDS": "ON",
        "SKBUILD_SOABI": MODULE.split(".")[1],
    }
    configure = ["--fresh", "-S", ROOT, "-B", FOLDER, "-G", "Ninja"]
    _cmake(*configure, *(f"-D{name}={value}" for name, value in options.items()))
    _cmake("--build", FOLDER, "--target", "_native", "-j1")
    return FOLDER / MODULE


def flags() -> list[str]:
    """What the compiler is told for a library of one source that needs nobody but the system."""
    target = [
        "--target=arm64-apple-macosx",
        "-mmacosx-version-min=14.0",
        "-isysroot",
        str(macos_sdk()),
    ]
    link = ["-fuse-ld=lld", "--ld-path=ld64.lld-22"]
    checks = ["-Werror=unguarded-availability", "-fno-sized-deallocation"]
    return [*target, "-std=c++20", *checks, *link]


def _cmake(*arguments: object) -> None:
    command = [Path(sys.executable).parent / "cmake", *map(str, arguments)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise BuildError(finished.stdout + finished.stderr)
