"""The registry of devices, and the choice of the one that MLX runs on."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import mlx.core as mx

from backend_metal import native
from backend_metal.cuda import device as cuda
from backend_metal.devices.base import Device as Device
from backend_metal.devices.cpu.device import Cpu
from backend_metal.devices.extension import Gpu
from backend_metal.devices.metal import Metal
from backend_metal.devices.reference import Reference

AVAILABLE = {"metal": mx.metal.is_available, "cuda": mx.cuda.is_available}
"""Whether MLX finds a GPU of this name, as in ``engine.device``."""


def _find() -> Gpu | None:
    if native.metal is not None and mx.metal.is_available():
        return Metal(native.metal)
    return None if cuda.OPERATORS is None else cuda.Cuda(cuda.OPERATORS)


GPU = _find()
"""This machine's GPU; None without a GPU, or without kernels for it in this build."""
CPU = Cpu()
REFERENCE = Reference("reference", mx.Device(mx.cpu))
"""Plain MLX, which runs on any device."""
PATHS: dict[str, Device] = {one.attention: one for one in (GPU, CPU, REFERENCE) if one is not None}
"""Devices by the name of their attention path, best first."""


def device_on(mlx: mx.Device) -> Device:
    """Return the device with kernels for ``mlx``, or else the reference."""
    return CPU if mlx.type == mx.cpu else GPU or REFERENCE


def device_for(path: Device | str | None) -> Device:
    """Return ``path``, or the device of that attention path; None: that of MLX's default device.
    Raises ``ValueError`` that names the allowed paths."""
    if path is None:
        return device_on(mx.default_device())
    if isinstance(path, str):
        if path not in PATHS:
            raise ValueError(f"path must be one of {sorted(PATHS)}, not {path!r}")
        return PATHS[path]
    return path


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
    if chosen == CPU.name:
        return CPU
    return GPU or Reference(chosen, mx.Device(mx.gpu))
