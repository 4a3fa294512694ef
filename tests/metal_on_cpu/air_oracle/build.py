"""A kernel out of MLX's `mlx.metallib` as a library that the emulator's driver dispatches."""

from __future__ import annotations

import hashlib
import tempfile
from functools import cache
from pathlib import Path

from ..cross_build.mlx_wheels import mlx_for_macos
from ..emulator import Library, compiler, toolchain
from ..emulator.translate import Instantiation, Translation
from ..emulator.translate.registry import registry
from .metallib import MetalLibrary
from .module import read_module

RUNTIME = Path(__file__).parent / "runtime.cpp"
FLAGS = ["--target=x86_64-linux-gnu", "-march=x86-64-v3", "-fPIC", "-O2", "-ffp-contract=on"]


@cache
def mlx_kernels() -> MetalLibrary:
    """MLX's kernels, compiled by Apple."""
    return MetalLibrary(mlx_for_macos() / "lib" / "mlx.metallib")


def apple_kernel(name: str, lane_map: str | None = None) -> Library:
    """The kernel `name` of MLX's wheel. `lane_map` is C++ that replaces the lanes' coordinates."""
    module = read_module(name, mlx_kernels().bitcode(name))
    instantiations = [Instantiation(name, name, name)]
    kernels = {name: module.kernel}
    tables = registry(instantiations, kernels, module.constants)
    translation = Translation(kernels, instantiations, module.constants, module.text, tables)
    return Library(_link(translation, lane_map), translation, "checked")


def _link(translation: Translation, lane_map: str | None) -> Path:
    runtime = compiler.runtime_objects("checked")
    defines = [] if lane_map is None else [f"-DAIR_LANE_MAP={lane_map}"]
    parts = [translation.code, translation.registry, RUNTIME.read_text(), runtime.name, *defines]
    key = hashlib.sha256("\0".join(parts).encode()).hexdigest()[:24]
    path = toolchain.cache_folder() / f"air-{key}.so"
    if path.exists():
        return path
    with tempfile.TemporaryDirectory(dir=toolchain.cache_folder()) as name:
        folder = Path(name)
        kernel, tables, library = folder / "kernel.o", folder / "tables.cpp", folder / "library.so"
        ir = [*FLAGS, "-w", "-c", "-x", "ir", "-", "-o", str(kernel)]
        toolchain.run([toolchain.clang(), *ir], translation.code)
        tables.write_text(translation.registry)
        toolchain.run(
            [
                *(toolchain.clangxx(), *FLAGS, "-std=c++20", "-shared", "-pthread", "-w"),
                *(f"-I{toolchain.RUNTIME}", *defines, str(RUNTIME), str(tables)),
                *(str(kernel), str(runtime), "-o", str(library), "-lm", "-ldl"),
            ]
        )
        library.rename(path)
    return path
