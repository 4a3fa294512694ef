"""One thing that was read from the machine, and what every platform tells alike."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import psutil


@dataclass(frozen=True)
class Metric:
    name: str
    """Without the prefix; of a counter also without `_total`."""
    help_text: str
    is_counter: bool = False
    label: str | None = None


@dataclass(frozen=True)
class Reading:
    metric: Metric
    value: float
    label_value: str = ""


@dataclass(frozen=True)
class Source:
    """What can fail on its own; ``read`` may raise anything."""

    name: str
    read: Callable[[], Iterable[Reading]]


MEMORY_TOTAL = Metric("memory_total_bytes", "Memory of the machine.")
MEMORY_AVAILABLE = Metric("memory_available_bytes", "Memory that programs could still get.")
MEMORY_PRESSURE = Metric(
    "memory_pressure_level", "What macOS makes of its memory: 0 normal, 1 warning, 2 critical."
)
MEMORY_STALL = Metric(
    "memory_stall_seconds",
    "Time in which some or all tasks stood still for want of memory (Linux PSI).",
    is_counter=True,
    label="scope",
)
CPU_STALL = Metric(
    "cpu_stall_seconds",
    "Time in which some tasks waited for a processor (Linux PSI).",
    is_counter=True,
    label="scope",
)
IO_STALL = Metric(
    "io_stall_seconds",
    "Time in which some or all tasks waited for a disk (Linux PSI).",
    is_counter=True,
    label="scope",
)
SWAP_USED = Metric("swap_used_bytes", "Memory that is swapped out.")
SWAP_IN = Metric("swap_in_bytes", "Memory that was swapped in.", is_counter=True)
SWAP_OUT = Metric("swap_out_bytes", "Memory that was swapped out.", is_counter=True)
CPU_SECONDS = Metric(
    "cpu_seconds", "Time of all processors, by what they did.", is_counter=True, label="mode"
)
DISK_AVAILABLE = Metric(
    "disk_available_bytes", "Room in the file system that holds Ray's session folder."
)
TEMPERATURE = Metric("temperature_celsius", "Temperature of a thermal zone.", label="sensor")
THERMAL_PRESSURE = Metric(
    "thermal_pressure_level",
    "What macOS does against heat: 0 nominal, 1 moderate, 2 heavy, 3 trapping.",
)
THERMAL_THROTTLES = Metric(
    "thermal_throttles", "Times that a processor core was slowed by heat.", is_counter=True
)
GPU_UTILIZATION = Metric("gpu_utilization_ratio", "Part of the time that the GPU is busy.")
GPU_MEMORY = Metric("gpu_memory_bytes", "System memory that the GPU uses.")

METRICS = (
    MEMORY_TOTAL,
    MEMORY_AVAILABLE,
    MEMORY_PRESSURE,
    MEMORY_STALL,
    CPU_STALL,
    IO_STALL,
    SWAP_USED,
    SWAP_IN,
    SWAP_OUT,
    CPU_SECONDS,
    DISK_AVAILABLE,
    TEMPERATURE,
    THERMAL_PRESSURE,
    THERMAL_THROTTLES,
    GPU_UTILIZATION,
    GPU_MEMORY,
)


def common_sources(session_folder: Path) -> Iterator[Source]:
    yield Source("memory", _memory)
    yield Source("swap", _swap)
    yield Source("processors", _processors)
    yield Source("disk", partial(_disk, session_folder))


def _memory() -> Iterator[Reading]:
    memory = psutil.virtual_memory()
    yield Reading(MEMORY_TOTAL, memory.total)
    yield Reading(MEMORY_AVAILABLE, memory.available)


def _swap() -> Iterator[Reading]:
    yield Reading(SWAP_USED, psutil.swap_memory().used)


def _processors() -> Iterator[Reading]:
    times = psutil.cpu_times()
    yield Reading(CPU_SECONDS, times.user + times.nice, "user")
    yield Reading(CPU_SECONDS, times.system, "system")
    yield Reading(CPU_SECONDS, times.idle, "idle")


def _disk(folder: Path) -> Iterator[Reading]:
    yield Reading(DISK_AVAILABLE, psutil.disk_usage(str(folder)).free)
