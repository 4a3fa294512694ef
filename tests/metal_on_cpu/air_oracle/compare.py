"""One kernel of MLX, compiled twice: by Apple, and by the emulator from the source in the wheel."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from ..cross_build.mlx_wheels import mlx_for_macos
from ..emulator import Library, compile_source
from ..emulator.library import Buffer
from .build import apple_kernel
from .elements import Array

HEADERS = "mlx/backend/metal/kernels"


@dataclass(frozen=True)
class Kernel:
    """An instantiation of a template of MLX: `function<arguments>`, of `headers`, called `name`.

    `renamed` are identifiers of the headers that the emulator would take for something else.
    """

    name: str
    headers: tuple[str, ...]
    function: str
    arguments: str
    renamed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Launch:
    grid: tuple[int, int, int]
    threadgroup: tuple[int, int, int]
    buffers: Mapping[int, Buffer]
    output: int  # index of the buffer to compare
    constants: Mapping[int, bool | int] = field(default_factory=dict)


def outputs(kernel: Kernel, launch: Launch) -> tuple[Array, Array]:
    """What Apple's kernel leaves in the output buffer, and what the emulator's does."""
    apple, emulated = (
        library.dispatch(
            kernel.name,
            grid=launch.grid,
            threadgroup=launch.threadgroup,
            buffers=launch.buffers,
            function_constants=launch.constants,
        ).buffers[launch.output]
        for library in (apple_kernel(kernel.name), emulated_kernel(kernel))
    )
    return apple, emulated


@cache
def emulated_kernel(kernel: Kernel) -> Library:
    lines = ["#include <metal_stdlib>", "using namespace metal;"]
    lines += [f'#include "{HEADERS}/utils.h"']
    lines += [f"#define {name} {name}_" for name in kernel.renamed]
    lines += [f'#include "{HEADERS}/{header}"' for header in kernel.headers]
    lines += [f'instantiate_kernel("{kernel.name}", {kernel.function}, {kernel.arguments})']
    include = mlx_for_macos() / "include"
    return compile_source("\n".join(lines), name=f"{kernel.name}.metal", includes=[include])


def packed(*fields: tuple[str, int | float | Sequence[int]]) -> bytes:
    """A C struct of fields of numpy types, aligned as in C."""
    layout = np.dtype([(f"f{i}", t, np.shape(v)) for i, (t, v) in enumerate(fields)], align=True)
    record = np.zeros((), layout)
    for i, (_, value) in enumerate(fields):
        record[f"f{i}"] = value
    return record.tobytes()
