"""macOS: memory pressure, swap traffic, thermal pressure and the GPU, as any user may read them.

Power of GPU and CPU is told to root alone (`powermetrics`) or through a private framework, and so
is left out.
"""

from __future__ import annotations

import ctypes
import plistlib
import re
import subprocess
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any

from deployments.observe.host.reading import (
    GPU_MEMORY,
    GPU_UTILIZATION,
    MEMORY_PRESSURE,
    SWAP_IN,
    SWAP_OUT,
    THERMAL_PRESSURE,
    Metric,
    Reading,
    Source,
)

# kern.memorystatus_vm_pressure_level counts in powers of two.
PRESSURE_LEVELS = {1: 0, 2: 1, 4: 2}
THERMAL_PRESSURE_KEY = b"com.apple.system.thermalpressurelevel"
COMMAND_TIMEOUT_S = 5
IOREG = ("/usr/sbin/ioreg", "-a", "-r", "-d", "1", "-c", "IOAccelerator")
_PAGE_BYTES = re.compile(r"page size of (\d+) bytes")
_SWAP = re.compile(r"^Swap(ins|outs):\s+(\d+)\.$", re.MULTILINE)


def output_of(command: tuple[str, ...]) -> bytes:
    return subprocess.run(
        command, capture_output=True, check=True, timeout=COMMAND_TIMEOUT_S
    ).stdout


def memory_pressure_level() -> int | None:
    """0, 1 or 2; None if this macOS has another scale."""
    libc = ctypes.CDLL(None)
    value, size = ctypes.c_int(), ctypes.c_size_t(ctypes.sizeof(ctypes.c_int))
    status = libc.sysctlbyname(
        b"kern.memorystatus_vm_pressure_level",
        ctypes.byref(value),
        ctypes.byref(size),
        None,
        ctypes.c_size_t(0),
    )
    return PRESSURE_LEVELS.get(value.value) if status == 0 else None


def thermal_pressure_level() -> int | None:
    """As `notifyutil -g com.apple.system.thermalpressurelevel` prints it."""
    libc = ctypes.CDLL(None)
    token, state = ctypes.c_int(), ctypes.c_uint64()
    if libc.notify_register_check(THERMAL_PRESSURE_KEY, ctypes.byref(token)) != 0:
        return None
    status = libc.notify_get_state(token, ctypes.byref(state))
    libc.notify_cancel(token)
    return state.value if status == 0 else None


def sources(
    output: Callable[[tuple[str, ...]], bytes] = output_of,
    memory_pressure: Callable[[], int | None] = memory_pressure_level,
    thermal_pressure: Callable[[], int | None] = thermal_pressure_level,
) -> Iterator[Source]:
    """``output`` runs a command, and raises when that fails."""
    yield Source("memory pressure", partial(_level, MEMORY_PRESSURE, memory_pressure))
    yield Source("thermal pressure", partial(_level, THERMAL_PRESSURE, thermal_pressure))
    yield Source("swap traffic", lambda: _swap_traffic(output(("/usr/bin/vm_stat",)).decode()))
    yield Source("GPU", lambda: _gpus(output(IOREG)))


def _level(metric: Metric, read: Callable[[], int | None]) -> Iterator[Reading]:
    if (level := read()) is not None:
        yield Reading(metric, level)


def _swap_traffic(text: str) -> Iterator[Reading]:
    if found := _PAGE_BYTES.search(text):
        for direction, pages in _SWAP.findall(text):
            metric = SWAP_IN if direction == "ins" else SWAP_OUT
            yield Reading(metric, int(pages) * int(found[1]))


def _gpus(listed: bytes) -> Iterator[Reading]:
    # Of a machine without one, such as a virtual one, `ioreg` prints nothing.
    for accelerator in plistlib.loads(listed) if listed.strip() else ():
        yield from _gpu(accelerator.get("PerformanceStatistics", {}))


def _gpu(statistics: Mapping[str, Any]) -> Iterator[Reading]:
    if (percent := statistics.get("Device Utilization %")) is not None:
        yield Reading(GPU_UTILIZATION, percent / 100)
    if (used := statistics.get("In use system memory")) is not None:
        yield Reading(GPU_MEMORY, used)
