"""Linux: pressure stall information, swap traffic, thermal zones and throttling."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from mmap import PAGESIZE
from pathlib import Path

from deployments.observe.host.reading import (
    CPU_STALL,
    IO_STALL,
    MEMORY_STALL,
    SWAP_IN,
    SWAP_OUT,
    TEMPERATURE,
    THERMAL_THROTTLES,
    Metric,
    Reading,
    Source,
)

STALLS = {"memory": MEMORY_STALL, "cpu": CPU_STALL, "io": IO_STALL}
_STALL = re.compile(r"^(some|full) .*total=(\d+)$", re.MULTILINE)
_SWAP = re.compile(r"^pswp(in|out) (\d+)$", re.MULTILINE)


def sources(root: Path = Path("/"), page_bytes: int = PAGESIZE) -> Iterator[Source]:
    for resource, metric in STALLS.items():
        path = root / "proc/pressure" / resource
        yield Source(f"{resource} stalls", partial(_stalls, path, metric))
    yield Source("swap traffic", partial(_swap_traffic, root / "proc/vmstat", page_bytes))
    for zone in sorted((root / "sys/class/thermal").glob("thermal_zone*")):
        yield Source(zone.name, partial(_temperature, zone))
    yield Source("throttling", partial(_throttles, root / "sys/devices/system/cpu"))


def _stalls(path: Path, metric: Metric) -> Iterator[Reading]:
    # Absent where the kernel was built or started without PSI.
    for scope, microseconds in _STALL.findall(_text(path)):
        yield Reading(metric, int(microseconds) / 1e6, scope)


def _swap_traffic(path: Path, page_bytes: int) -> Iterator[Reading]:
    for direction, pages in _SWAP.findall(_text(path)):
        metric = SWAP_IN if direction == "in" else SWAP_OUT
        yield Reading(metric, int(pages) * page_bytes)


def _temperature(zone: Path) -> Iterator[Reading]:
    if millidegrees := _text(zone / "temp").strip():
        name = f"{_text(zone / 'type').strip()}-{zone.name.removeprefix('thermal_zone')}"
        yield Reading(TEMPERATURE, int(millidegrees) / 1000, name)


def _throttles(processors: Path) -> Iterator[Reading]:
    counters = processors.glob("cpu*/thermal_throttle/core_throttle_count")
    if throttles := [int(text) for path in counters if (text := _text(path).strip())]:
        yield Reading(THERMAL_THROTTLES, sum(throttles))


def _text(path: Path) -> str:
    """Empty if the kernel does not tell: no such file, or no answer to a read."""
    try:
        return path.read_text()
    except OSError:
        return ""
