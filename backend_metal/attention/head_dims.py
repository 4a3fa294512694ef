"""The head dims that kernels are written for; the reference takes any."""

from __future__ import annotations

from collections.abc import Iterable

from backend_metal.device import REFERENCE, Device, device_for

HEAD_DIMS = (64, 80, 96, 112, 128, 192, 256)
"""Of keys and of values, in any combination."""
WIDE_HEAD_DIMS = ((512, 512), (576, 512))
"""Of keys and values together. Multi-head latent attention keeps 512 + 64 dimensions as keys, and
the 512 as values."""


def have_kernels(head_dims: tuple[int, int]) -> bool:
    """Whether kernels take these head dims of keys and values."""
    return head_dims in WIDE_HEAD_DIMS or all(dim in HEAD_DIMS for dim in head_dims)


def missing_kernels(head_dims: tuple[int, int]) -> str:
    """What to say of head dims that no kernels take."""
    keys, values = head_dims
    lacking = f"head dim {keys}" if keys == values else f"head dims {keys}/{values}"
    there = [str(dim) for dim in HEAD_DIMS] + [f"{pair[0]}/{pair[1]}" for pair in WIDE_HEAD_DIMS]
    return f"no kernels for {lacking}: there are {', '.join(there)} (keys/values)"


def missing(device: Device, head_dims: Iterable[tuple[int, int]]) -> str | None:
    """Return why ``device`` has no attention for these head dims of keys and values, or None."""
    lacking = [pair for pair in head_dims if not (device.any_head_dim or have_kernels(pair))]
    return f"the {device.attention} path has {missing_kernels(lacking[0])}" if lacking else None


def attending(path: Device | str | None, head_dims: Iterable[tuple[int, int]]) -> Device:
    """Return the device of ``path`` for caches of these head dims.

    None: MLX's default device, or the reference if that has no kernels for them. Raises
    ``ValueError`` if the requested device has none.
    """
    device = device_for(path)
    lacking = missing(device, head_dims)
    if lacking and path is None:
        return REFERENCE
    if lacking:
        raise ValueError(f"path must have kernels for k_cache and v_cache: {lacking}")
    return device
