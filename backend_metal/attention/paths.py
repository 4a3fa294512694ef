"""Who runs the attention operators: each path's kernels, and how it makes caches."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import mlx.core as mx

from backend_metal import native
from backend_metal.attention import reference
from backend_metal.attention.head_dims import have_kernels, missing_kernels


@dataclass(frozen=True)
class AttentionPath:
    """One implementation of ``backend_metal.attention``; all of them take the same arguments."""

    name: str
    """What the metrics call it."""
    scatter_paged_attention: Callable[..., tuple[mx.array, mx.array, mx.array]]
    paged_attention: Callable[..., mx.array]
    reshape_and_cache: Callable[..., tuple[mx.array, mx.array]]
    zeros: Callable[[tuple[int, ...], mx.Dtype], mx.array]
    """A cache in the memory that suits the path."""
    any_head_dim: bool = False

    def missing(self, head_dims: Iterable[tuple[int, int]]) -> str | None:
        """Why it can't attend over caches of these head dims, of keys and values; None: it can."""
        lacking = [pair for pair in head_dims if not (self.any_head_dim or have_kernels(pair))]
        return f"the {self.name} path has {missing_kernels(lacking[0])}" if lacking else None


CPU = AttentionPath(
    "cpu",
    native.scatter_paged_attention,
    native.paged_attention,
    native.reshape_and_cache,
    native.zeros,
)
"""The kernels of ``csrc/cpu``."""

REFERENCE = AttentionPath(
    "reference",
    reference.scatter_paged_attention,
    reference.paged_attention,
    reference.reshape_and_cache,
    mx.zeros,
    any_head_dim=True,
)
"""Plain MLX, on any device."""

METAL = (
    AttentionPath(
        "metal",
        native.metal.scatter_paged_attention,
        native.metal.paged_attention,
        native.metal.reshape_and_cache,
        mx.zeros,
    )
    if native.metal is not None
    else None
)
"""The kernels of ``shaders``, in builds for macOS."""

PATHS = {path.name: path for path in (METAL, CPU, REFERENCE) if path is not None}
"""Those that this build has, best first."""


def path_on(device: mx.Device) -> AttentionPath:
    """The kernels written for ``device``, or the reference where there are none."""
    if device.type == mx.cpu:
        return CPU
    return METAL if METAL is not None and mx.metal.is_available() else REFERENCE


def resolve_path(
    path: AttentionPath | str | None, head_dims: Iterable[tuple[int, int]]
) -> AttentionPath:
    """A path from itself or its name, for caches of these head dims, of keys and values.

    None: that of MLX's default device, or the reference where it lacks kernels for them. Raises
    ``ValueError`` when the path that is asked for does.
    """
    if path is None:
        own = path_on(mx.default_device())
        return REFERENCE if own.missing(head_dims) else own
    if isinstance(path, str):
        if path not in PATHS:
            raise ValueError(f"path must be one of {sorted(PATHS)}, not {path!r}")
        path = PATHS[path]
    if missing := path.missing(head_dims):
        raise ValueError(f"path must have kernels for k_cache and v_cache: {missing}")
    return path
