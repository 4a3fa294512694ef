"""Who updates recurrent state: the kernels of a device, or the model's own code."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from backend_metal import native
from backend_metal.gpu import GPU
from backend_metal.recurrent.specs import RecurrentSpec

GPU_HEAD_DIMS = (1, 4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256)
"""Columns of a state that the lanes of a simdgroup share."""


@dataclass(frozen=True)
class Kernels:
    """Of ``operators.py``, which checks what they are given."""

    causal_conv: Callable[..., tuple[mx.array, mx.array]]
    linear_attention: Callable[..., tuple[mx.array, mx.array]]
    head_dims: tuple[int, ...] | None = None
    """Those that linear attention takes; None: any."""


@dataclass(frozen=True)
class RecurrentPath:
    name: str
    zeros: Callable[[tuple[int, ...], mx.Dtype], mx.array]
    """State in the memory that suits the path."""
    kernels: Kernels | None
    """None: the modules of mlx-lm run as they are, on copies of the states."""

    def serves(self, spec: RecurrentSpec) -> bool:
        """Whether its kernels update all that such a layer keeps."""
        if self.kernels is None or not spec.fits_kernels:
            return False
        dims = self.kernels.head_dims
        return dims is None or all(
            array.is_inputs or array.shape[-1] in dims for array in spec.arrays
        )


CPU = RecurrentPath("cpu", native.zeros, Kernels(native.causal_conv, native.linear_attention))
"""The kernels of ``csrc/cpu``."""

REFERENCE = RecurrentPath("reference", mx.zeros, None)
"""Plain MLX, on any device."""


_ON_GPU = (
    RecurrentPath(
        GPU.name,
        mx.zeros,
        Kernels(GPU.operators.causal_conv, GPU.operators.linear_attention, GPU_HEAD_DIMS),
    )
    if GPU is not None
    else None
)

PATHS = {path.name: path for path in (_ON_GPU, CPU, REFERENCE) if path is not None}


def resolve_path(path: RecurrentPath | str | None) -> RecurrentPath:
    """A path from itself or its name; None: that of MLX's default device. Raises ``ValueError``
    naming those that there are."""
    if path is None:
        if mx.default_device() == mx.cpu:
            return CPU
        return _ON_GPU or REFERENCE
    if isinstance(path, RecurrentPath):
        return path
    if path not in PATHS:
        raise ValueError(f"path must be one of {sorted(PATHS)}, not {path!r}")
    return PATHS[path]
