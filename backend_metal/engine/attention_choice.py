"""Which attention path an engine serves with: the device's own, if it passes the check at start."""

from __future__ import annotations

import contextlib
import logging
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version

import mlx.core as mx

from backend_metal.attention.kv_cache import LayerAttention
from backend_metal.attention.paths import REFERENCE, AttentionPath
from backend_metal.attention.self_check import SelfCheckError, check_path
from backend_metal.device import Device
from deployments.backend import AttentionStatus

logger = logging.getLogger(__name__)

REASON_CHARACTERS = 300
"""Most of what failed that a status carries; a compiler's whole output is in the log."""


def choose_attention(
    setting: str,
    device: Device,
    layers: Sequence[LayerAttention],
    *,
    block_size: int,
    dtype: mx.Dtype,
) -> tuple[AttentionPath, AttentionStatus]:
    """The path for ``engine.attention`` on a device, and why. Call it in the thread that owns MLX.

    Raises ``ValueError`` when the setting names a path that the device does not have, one without
    kernels for the model's head dims, or one that gives other results than the reference here.
    """
    if setting not in ("auto", device.path.name, REFERENCE.name):
        allowed = dict.fromkeys(("auto", device.path.name, REFERENCE.name))
        raise ValueError(
            f"engine.attention is {setting!r}, and the device {device.name!r} has no such kernels; "
            f"it must be one of {tuple(allowed)}"
        )
    if setting == REFERENCE.name:
        return REFERENCE, _status(REFERENCE, "engine.attention asks for it", wanted=REFERENCE.name)
    # Metal's kernels are missing only where the build went wrong; for CUDA there are none yet.
    wanted = "metal" if device.name == "metal" else device.path.name
    if device.path is REFERENCE:
        return REFERENCE, _status(REFERENCE, f"{device.name} has no kernels here", wanted)
    missing = device.path.missing(layer.cache.head_dims for layer in layers)
    if missing:
        if setting != "auto":
            raise ValueError(
                f"engine.attention is {setting!r}, and {missing}; auto would serve with plain MLX "
                "instead"
            )
        logger.warning("Plain MLX operators serve, more slowly: %s", missing)
        return REFERENCE, _status(REFERENCE, missing, wanted=REFERENCE.name)
    started = time.perf_counter()
    try:
        check_path(device.path, layers, block_size, dtype)
    except SelfCheckError as error:
        if setting != "auto":
            raise ValueError(
                f"engine.attention is {setting!r}, and these kernels fail the check at start: "
                f"{error} ({_machine(device)}); auto would serve with plain MLX instead"
            ) from error
        logger.error(
            "The %s attention kernels are wrong on this machine, so plain MLX operators serve, "
            "more slowly. Please send us this: %s: %s",
            device.path.name,
            _machine(device),
            error,
            exc_info=error.__cause__,
        )
        _forget_errors()
        reason = f"the {device.path.name} kernels failed the check at start: {error}"
        return REFERENCE, _status(REFERENCE, reason, wanted)
    logger.info(
        "%s attention kernels agree with the reference; checked in %.2f s",
        device.path.name,
        time.perf_counter() - started,
    )
    return device.path, _status(device.path, "passed the check at start", wanted)


def _status(path: AttentionPath, reason: str, wanted: str) -> AttentionStatus:
    return AttentionStatus(path.name, reason[:REASON_CHARACTERS], wanted)


def _forget_errors() -> None:
    # A GPU's failure is raised once for each wait that meets it; nobody else is to meet it.
    with contextlib.suppress(RuntimeError):
        mx.synchronize()


def _machine(device: Device) -> str:
    info = mx.device_info(device.mlx)
    system = f"macOS {platform.mac_ver()[0]}" if platform.mac_ver()[0] else platform.platform()
    chip = info.get("device_name", platform.processor() or platform.machine())
    return f"{chip}, {system}, MLX {version('mlx')}, Pomona {version('pomona-serve')}"
