"""Where the CPU kernels run outside of the extension: on arm64, and here under sanitizers."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

from . import cmake
from .kernel_program import Program
from .tools import CACHE, ROOT, program, python_package

HERE = Path(__file__).parent
CSRC = ROOT / "backend_metal" / "csrc"
QEMU = ("qemu-aarch64-static", "qemu-user-static")


def on_arm64() -> Program:
    """NEON kernels, by an emulator of the processor."""
    emulator = program(*QEMU)
    return Program([str(emulator), str(_build_for_arm64()), "baseline", "neon"])


def with_sanitizers(instruction_set: str, sgemm_kernel: str) -> Program:
    """Kernels of this processor; a step out of bounds or undefined behaviour ends the process."""
    environment = os.environ | {"UBSAN_OPTIONS": "print_stacktrace=1"}
    command = [str(_build_with_sanitizers()), instruction_set, sgemm_kernel]
    return Program(command, environment)


@cache
def _build_for_arm64() -> Path:
    zig = python_package("ziglang") / "zig"
    # The compiler builds the target's C library once and keeps it there.
    os.environ["ZIG_GLOBAL_CACHE_DIR"] = str(CACHE / "zig")
    toolchain = {"CMAKE_TOOLCHAIN_FILE": HERE / "linux_arm64.cmake", "POMONA_ZIG": zig}
    return _build("linux_arm64", toolchain)


@cache
def _build_with_sanitizers() -> Path:
    compiler = program("clang++-22", "clang-22")
    options = {"CMAKE_CXX_COMPILER": compiler, "POMONA_SANITIZE": "address,undefined"}
    return _build("linux_sanitized", options)


def _build(name: str, options: dict[str, object]) -> Path:
    folder = CACHE / name
    cmake.build(HERE / "kernels", folder, "kernels", {"POMONA_CSRC": CSRC} | options)
    return folder / "kernels"
