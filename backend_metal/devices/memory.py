"""How much memory a device has."""

from __future__ import annotations

import os
from pathlib import Path

import mlx.core as mx

CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)


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
