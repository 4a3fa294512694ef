"""The test extension, ready to compile kernels, and the settings that a test may change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import mlx.core as mx

from tests.metal_on_cpu.emulator import compile_source
from tests.metal_on_cpu.emulator.compiler import build_library
from tests.metal_on_cpu.host.build import SHADERS, load


@cache
def extension() -> ModuleType:
    """``_metal_on_cpu``; see ``build.load`` for what it raises."""
    module = load()
    module.set_compiler(_compile)
    module.set_shader_folder(str(SHADERS))
    return module


def _compile(source: str, track_loads: bool) -> str:
    library = compile_source(source)
    return str(build_library(library.translation, "traced") if track_loads else library.path)


_folders = [SHADERS]
"""The last one is where kernels are compiled from."""


@contextmanager
def shaders(folder: Path) -> Iterator[None]:
    """Within it kernels are compiled from the texts in ``folder``, a copy of the shipped one."""
    _folders.append(folder)
    extension().set_shader_folder(str(folder))
    try:
        yield
    finally:
        _folders.pop()
        extension().set_shader_folder(str(_folders[-1]))


@contextmanager
def gpu(
    *,
    core_count: int = 8,
    architecture: str = "applegpu_g13g",
    threadgroup_memory: int = 32768,
    max_threads_per_threadgroup: int = 1024,
) -> Iterator[None]:
    """Within it the device claims these limits; memory in bytes."""
    with _changed(
        extension().gpu_model,
        core_count=core_count,
        architecture=architecture,
        threadgroup_memory=threadgroup_memory,
        max_threads_per_threadgroup=max_threads_per_threadgroup,
    ):
        yield


@contextmanager
def execution(
    *,
    seed: int = 0,
    workers: int = 2,
    reverse_unordered: bool = False,
    guard_at_start: bool = False,
    max_guarded_bytes: int = 64 << 20,
    track_loads: bool = False,
) -> Iterator[None]:
    """How dispatches run that are evaluated within it.

    ``seed`` picks the schedule of a threadgroup's threads (0: in order, 1: backwards, others
    random). ``reverse_unordered`` runs dispatches that no barrier separates last to first.
    ``guard_at_start`` puts the unmapped page before each buffer, not after it.
    """
    module = extension()
    changed = {
        "seed": seed,
        "workers": workers,
        "reverse_unordered": reverse_unordered,
        "guard_at_start": guard_at_start,
        "max_guarded_bytes": max_guarded_bytes,
        "track_loads": track_loads,
    }
    with _changed(module.settings, **changed):
        if track_loads:
            module.clear_libraries(str(_folders[-1]))
        try:
            yield
        finally:
            if track_loads:
                module.clear_libraries(str(_folders[-1]))


@contextmanager
def exact_allocations() -> Iterator[None]:
    """Within it MLX's buffers end where their arrays do: those from its cache are larger."""
    limit = mx.set_cache_limit(0)
    try:
        yield
    finally:
        mx.set_cache_limit(limit)


@contextmanager
def _changed(target: Any, **values: Any) -> Iterator[None]:
    before = {name: getattr(target, name) for name in values}
    try:
        for name, value in values.items():
            setattr(target, name, value)
        yield
    finally:
        for name, value in before.items():
            setattr(target, name, value)
