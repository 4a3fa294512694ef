"""Who runs the attention operators: each path's kernels, and how it makes and copies caches."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx

from backend_metal import native
from backend_metal.attention import reference


@dataclass(frozen=True)
class AttentionPath:
    """One implementation of ``backend_metal.attention``; all of them take the same arguments."""

    name: str
    """What the metrics call it."""
    scatter_paged_attention: Callable[..., tuple[mx.array, mx.array, mx.array]]
    paged_attention: Callable[..., mx.array]
    reshape_and_cache: Callable[..., tuple[mx.array, mx.array]]
    copy_blocks: Callable[[mx.array, mx.array, mx.array], mx.array]
    """``(cache, sources, destinations) -> cache``; both int32 ``[num_copies]``."""
    zeros: Callable[[tuple[int, ...], mx.Dtype], mx.array]
    """A cache in the memory that suits the path."""


def _copy_evaluated(cache: mx.array, sources: mx.array, destinations: mx.array) -> mx.array:
    # Evaluated apart from the write: a reader in the same graph makes MLX copy the whole cache.
    copied = cache[sources]
    mx.eval(copied)
    cache[destinations] = copied
    mx.eval(cache)
    return cache


CPU = AttentionPath(
    "cpu",
    native.scatter_paged_attention,
    native.paged_attention,
    native.reshape_and_cache,
    native.copy_blocks,
    native.zeros,
)
"""The kernels of ``csrc/cpu``."""

REFERENCE = AttentionPath(
    "reference",
    reference.scatter_paged_attention,
    reference.paged_attention,
    reference.reshape_and_cache,
    _copy_evaluated,
    mx.zeros,
)
"""Plain MLX, on any device."""

METAL = (
    AttentionPath(
        "metal",
        native.metal.scatter_paged_attention,
        native.metal.paged_attention,
        native.metal.reshape_and_cache,
        native.metal.copy_blocks,
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


def resolve_path(path: AttentionPath | str | None) -> AttentionPath:
    """A path from itself or its name; None: that of MLX's default device."""
    if isinstance(path, AttentionPath):
        return path
    if path is None:
        return path_on(mx.default_device())
    if path not in PATHS:
        raise ValueError(f"path must be one of {sorted(PATHS)}, not {path!r}")
    return PATHS[path]
