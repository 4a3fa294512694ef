"""Which device MLX runs on, which attention path suits it, and how much memory it has."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import mlx.core as mx

from backend_metal.attention.paths import AttentionPath, path_on
from backend_metal.devices.cpu.blas import multiplies_rows_alike
from backend_metal.gpu import AVAILABLE, GPU
from backend_metal.gpu import STEP_TOKENS as GPU_STEP_TOKENS

CPU_STEP_TOKENS = 512
"""The default ``max_num_batched_tokens``. A CPU multiplies at its full rate from a hundred rows on,
so a longer chunk only holds up the streams beside it for longer."""
CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


@dataclass(frozen=True)
class Device:
    name: str
    """As in ``engine.device``."""
    mlx: mx.Device
    """Where MLX evaluates everything else."""
    path: AttentionPath
    """Its own kernels, or the reference where it has none."""

    @property
    def step_tokens(self) -> int:
        """The token budget of a step that suits it."""
        if self.mlx.type == mx.cpu:
            return CPU_STEP_TOKENS
        if GPU is not None and self.path is GPU.attention:
            return GPU.step_tokens
        return GPU_STEP_TOKENS

    @property
    def deterministic_path(self) -> AttentionPath | None:
        """For a model's results that depend on its sequence alone; None where products of matrices,
        or attention, have other bits with another number of rows."""
        own = self.path.deterministic
        if own is None or own.multiply_alike is not None:
            return own
        return own if multiplies_rows_alike() else None


_registered: dict[str, Device] = {}


@contextmanager
def registered(device: Device) -> Iterator[Device]:
    """Within it ``device`` can be selected by its name, though never by ``auto``."""
    if device.name in (*_registered, *available_devices()):
        raise ValueError(f"there is a device {device.name!r} already")
    _registered[device.name] = device
    try:
        yield device
    finally:
        del _registered[device.name]


def is_registered(name: str | None) -> bool:
    return name in _registered


def available_devices() -> tuple[str, ...]:
    """What this build of MLX finds on this machine, best first."""
    return (*(name for name, is_available in AVAILABLE.items() if is_available()), "cpu")


def select_device(name: str) -> Device:
    """Make a device MLX's default and return it; ``auto`` takes the best one.

    Raises ``ValueError`` when the device is not there. Call it in the thread that will own MLX.
    """
    device = _registered.get(name) or _available(name)
    mx.set_default_device(device.mlx)
    return device


def _available(name: str) -> Device:
    available = available_devices()
    chosen = available[0] if name == "auto" else name
    if chosen not in available:
        raise ValueError(
            f"engine.device is {name!r}, which MLX does not find here; "
            f"it must be auto or one of {available}"
        )
    device = mx.Device(mx.cpu if chosen == "cpu" else mx.gpu)
    return Device(chosen, device, path_on(device))


def device_memory_bytes(device: mx.Device) -> int:
    """Memory that MLX can use on ``device``: what the GPU reports; on the CPU what the machine
    has, or the process's control group allows."""
    if device.type == mx.cpu:
        return min(_physical_memory_bytes(), *_cgroup_limits())
    info = mx.device_info(device)
    # On Apple silicon the working set is the part of unified memory that the GPU may hold.
    for key in ("max_recommended_working_set_size", "memory_size", "total_memory"):
        if key in info:
            return int(info[key])
    raise ValueError(f"MLX does not report the memory of {device}: {info}")


def _physical_memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cgroup_limits() -> list[int]:
    texts = [path.read_text().strip() for path in CGROUP_LIMITS if path.is_file()]
    return [int(text) for text in texts if text != "max"] or [_physical_memory_bytes()]
