"""Who runs the attention operators: each path's kernels, and how it makes caches."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import mlx.core as mx

from backend_metal import native
from backend_metal.attention import reference
from backend_metal.attention.head_dims import have_kernels, missing_kernels
from backend_metal.devices.base import AttentionPath as AttentionPath
from backend_metal.devices.row_operators import RowOperators
from backend_metal.gpu import GPU

CPU = AttentionPath(
    "cpu",
    native.scatter_paged_attention,
    native.paged_attention,
    native.reshape_and_cache,
    native.zeros,
    repeats_graphs=True,
    rotate_heads=native.rotate_heads,
    rows=RowOperators(native.rms_norm_of_sum),
    deterministic=AttentionPath(
        "cpu",
        partial(native.scatter_paged_attention, one_kernel=True),
        partial(native.paged_attention, one_kernel=True),
        native.reshape_and_cache,
        native.zeros,
        repeats_graphs=True,
        rotate_heads=native.rotate_heads,
        # Where keys are cut shows in the last bits, and is counted from where a table begins.
        origin_multiple=native.KEYS_PER_SPLIT,
        one_way=True,
    ),
)
"""The kernels of ``csrc/cpu``."""

REFERENCE = AttentionPath(
    "reference",
    reference.scatter_paged_attention,
    reference.paged_attention,
    reference.reshape_and_cache,
    mx.zeros,
    any_head_dim=True,
    writes_in_place=False,
)
"""Plain MLX, on any device."""

PATHS = {
    path.name: path for path in (None if GPU is None else GPU.attention, CPU, REFERENCE) if path
}
"""Those that this build has, best first."""


def path_on(device: mx.Device) -> AttentionPath:
    """The kernels written for ``device``, or the reference where there are none."""
    if device.type == mx.cpu:
        return CPU
    return REFERENCE if GPU is None else GPU.attention


def missing(path: AttentionPath, head_dims: Iterable[tuple[int, int]]) -> str | None:
    """Why ``path`` can't attend over caches of these head dims, of keys and values; None: it
    can."""
    lacking = [pair for pair in head_dims if not (path.any_head_dim or have_kernels(pair))]
    return f"the {path.name} path has {missing_kernels(lacking[0])}" if lacking else None


def resolve_path(
    path: AttentionPath | str | None, head_dims: Iterable[tuple[int, int]]
) -> AttentionPath:
    """A path from itself or its name, for caches of these head dims, of keys and values.

    None: that of MLX's default device, or the reference where it lacks kernels for them. Raises
    ``ValueError`` when the path that is asked for does.
    """
    if path is None:
        own = path_on(mx.default_device())
        return REFERENCE if missing(own, head_dims) else own
    if isinstance(path, str):
        if path not in PATHS:
            raise ValueError(f"path must be one of {sorted(PATHS)}, not {path!r}")
        path = PATHS[path]
    if lacking := missing(path, head_dims):
        raise ValueError(f"path must have kernels for k_cache and v_cache: {lacking}")
    return path


def scatter_latent_attention(
    path: AttentionPath,
    *,
    k: mx.array,
    k_cache: mx.array,
    slot_mapping: mx.array,
    head_dim_v: int,
    **arguments: Any,
) -> tuple[mx.array, mx.array]:
    """As ``path.scatter_paged_attention`` where the values are the first ``head_dim_v`` dims of the
    keys, which alone are kept: ``(out, k_cache)``."""
    if path.writes_in_place:
        out, k_cache, _ = path.scatter_paged_attention(
            k=k,
            v=k[..., :head_dim_v],
            k_cache=k_cache,
            v_cache=k_cache[..., :head_dim_v],
            slot_mapping=slot_mapping,
            **arguments,
        )
        return out, k_cache
    # Written through two views, the cache would become two.
    k_cache = reference.write_rows(k_cache, k, slot_mapping)
    values = k_cache[..., :head_dim_v]
    return path.paged_attention(k_cache=k_cache, v_cache=values, **arguments), k_cache


def write_latents(
    path: AttentionPath, rows: mx.array, k_cache: mx.array, slot_mapping: mx.array
) -> mx.array:
    """Write what is kept in one array alone: ``k_cache``."""
    if not path.writes_in_place:
        return reference.write_rows(k_cache, rows, slot_mapping)
    k_cache, _ = path.reshape_and_cache(rows, rows, k_cache, k_cache, slot_mapping)
    return k_cache
