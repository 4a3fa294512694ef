"""Which attention path an engine serves with: the device's own, if it passes the check at start."""

from __future__ import annotations

import contextlib
import logging
import platform
import time
from collections.abc import Sequence
from importlib.metadata import version

import mlx.core as mx

from backend_metal.attention.head_dims import missing as missing_kernels
from backend_metal.attention.kv_cache import LayerAttention
from backend_metal.attention.self_check import SelfCheckError, check_path
from backend_metal.device import REFERENCE, Device
from backend_metal.devices.reference import Reference
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
    deterministic: bool = False,
) -> tuple[Device, AttentionStatus]:
    """The path for ``engine.attention`` on a device, and why. Call it in the thread that owns MLX.
    ``deterministic``: one whose results for a token depend on its sequence alone.

    Raises ``ValueError`` when the setting names a path that the device does not have, one without
    kernels for the model's head dims, or one that gives other results than the reference here;
    or when no path is deterministic that is to be.
    """
    if not deterministic:
        return _choose(setting, device, layers, block_size, dtype)
    if any(layer.top_k is not None for layer in layers):
        raise ValueError(
            "engine.deterministic must be false for a model with sparse attention: which keys a "
            "token chooses may depend on how many choose with it"
        )
    own = device.deterministic()
    if own is None:
        raise ValueError(
            f"engine.deterministic must be false on the device {device.name!r}, where products of "
            "matrices or attention depend on how many rows there are; the CPU's do not, with "
            "POMONA_BLAS=on"
        )
    path, status = _choose(setting, own, layers, block_size, dtype)
    if path is REFERENCE:
        raise ValueError(
            "engine.deterministic must be false where plain MLX operators attend, whose results "
            f"depend on how many rows there are: {status.reason}"
        )
    return path, status


def _choose(
    setting: str,
    device: Device,
    layers: Sequence[LayerAttention],
    block_size: int,
    dtype: mx.Dtype,
) -> tuple[Device, AttentionStatus]:
    if setting not in ("auto", device.attention, REFERENCE.attention):
        allowed = dict.fromkeys(("auto", device.attention, REFERENCE.attention))
        raise ValueError(
            f"engine.attention is {setting!r}, and the device {device.name!r} has no such kernels; "
            f"it must be one of {tuple(allowed)}"
        )
    if setting == REFERENCE.attention:
        return REFERENCE, _status(REFERENCE, "engine.attention asks for it", setting)
    # A GPU's kernels are missing only where the build went wrong.
    if isinstance(device, Reference):
        return REFERENCE, _status(REFERENCE, f"{device.name} has no kernels here", device.name)
    head_dims = [one.cache.head_dims for layer in layers for one in layer.kernels]
    missing = missing_kernels(device, head_dims)
    if missing:
        if setting != "auto":
            raise ValueError(
                f"engine.attention is {setting!r}, and {missing}; auto would serve with plain MLX "
                "instead"
            )
        logger.warning("Plain MLX operators serve, more slowly: %s", missing)
        return REFERENCE, _status(REFERENCE, missing, wanted=REFERENCE.attention)
    started = time.perf_counter()
    try:
        check_path(device, layers, block_size, dtype)
    except SelfCheckError as error:
        if setting != "auto":
            raise ValueError(
                f"engine.attention is {setting!r}, and these kernels fail the check at start: "
                f"{error} ({_machine(device)}); auto would serve with plain MLX instead"
            ) from error
        logger.error(
            "The %s attention kernels are wrong on this machine, so plain MLX operators serve, "
            "more slowly. Please send us this: %s: %s",
            device.attention,
            _machine(device),
            error,
            exc_info=error.__cause__,
        )
        _forget_errors()
        reason = f"the {device.attention} kernels failed the check at start: {error}"
        return REFERENCE, _status(REFERENCE, reason, device.attention)
    logger.info(
        "%s attention kernels agree with the reference; checked in %.2f s",
        device.attention,
        time.perf_counter() - started,
    )
    return device, _status(device, "passed the check at start", device.attention)


def _status(path: Device, reason: str, wanted: str) -> AttentionStatus:
    return AttentionStatus(path.attention, reason[:REASON_CHARACTERS], wanted)


def _forget_errors() -> None:
    # A GPU's failure is raised once for each wait that meets it; nobody else is to meet it.
    with contextlib.suppress(RuntimeError):
        mx.synchronize()


def _machine(device: Device) -> str:
    info = mx.device_info(device.mlx)
    system = f"macOS {platform.mac_ver()[0]}" if platform.mac_ver()[0] else platform.platform()
    chip = info.get("device_name", platform.processor() or platform.machine())
    return f"{chip}, {system}, MLX {version('mlx')}, Pomona {version('pomona-serve')}"
