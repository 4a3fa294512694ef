"""Times of everybody's attention on one device, and the limit that holds there."""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

# Before mlx, so that MLX finds the BLAS.
from backend_metal.device import REFERENCE, Device  # isort: skip
import mlx.core as mx

from backend_metal.devices.cpu.blas import physical_cores
from ops.bench import device_limits, machine
from ops.bench.attention.cases import Case, Paged, contiguous
from ops.bench.timing import markdown_table, median_seconds, medians_by_turns

CONTIGUOUS = "contiguous"
GPU_CALLS = 16
"""Of attention in one graph."""

Times = dict[str, float]
"""Seconds of one call by contender; those that did not fit are missing."""


@dataclass(frozen=True)
class Measured:
    case: Case
    times: Times
    limit: float
    """Bytes or operations a second that the device could do just before and after, averaged."""


@dataclass(frozen=True)
class AttentionBench:
    device: Device
    dtype: mx.Dtype
    budget: float
    """Seconds for one figure."""
    memory_bytes: float
    """Cases that would take more are left out."""

    @property
    def contenders(self) -> tuple[str, ...]:
        """The device's own path first. The reference gathers blocks, in float32, and calls MLX;
        the last one is MLX over keys and values without blocks."""
        return (*self._paths, CONTIGUOUS)

    @property
    def _paths(self) -> dict[str, Device]:
        return {path.attention: path for path in (self.device, REFERENCE)}

    @property
    def _calls(self) -> int:
        return 1 if self._is_cpu else GPU_CALLS

    @property
    def _is_cpu(self) -> bool:
        return self.device.mlx.type == mx.cpu

    def machine_report(self) -> str:
        if self._is_cpu:
            return machine.measure_machine().report()
        return device_limits.measure_device(self.device, self.dtype).report()

    def run(self, cases: Iterable[Case], done: Callable[[], object]) -> list[Measured]:
        """Calls ``done`` after each case."""
        measured = []
        for case in cases:
            before = self.limit(case)
            times = self.measure(case)
            measured.append(Measured(case, times, (before + self.limit(case)) / 2))
            done()
        return measured

    def measure(self, case: Case) -> Times:
        """Contenders share nothing but the case. They take turns, since a GPU's clock rises while
        it has work; the reference, which takes far longer, comes afterwards."""
        fitting = [n for n in self.contenders if self._bytes(case, n) <= self.memory_bytes]
        if not fitting:
            return {}
        paged = Paged(case, self.dtype, self.device, self._calls)
        own, *others = self._paths
        runs = {own: paged.run(self._paths[own])}
        if CONTIGUOUS in fitting:
            runs[CONTIGUOUS] = contiguous(case, self.dtype, self._calls)
        seconds = medians_by_turns(list(runs.values()), budget=self.budget)
        taken = dict(zip(runs, seconds, strict=True))
        del runs
        _free()
        for name in others:
            if name in fitting:
                taken[name] = median_seconds(paged.run(self._paths[name]), budget=self.budget)
                _free()
        return {name: taken[name] / self._calls for name in fitting}

    def _bytes(self, case: Case, name: str) -> float:
        """Most memory that a contender takes."""
        keys = case.kv_bytes(self.dtype)
        if name == self.device.attention:
            return keys
        # Where MLX has no kernel for it, a prefill's scores are kept, and their softmax.
        scores = 2 * mx.float32.size * case.num_scores if case.new > 1 else 0
        in_float32 = mx.float32.size / self.dtype.size
        # Nothing of a graph is freed before a GPU has run it.
        copies = 1 + 4 * in_float32 * self._calls if name == REFERENCE.attention else 3
        return copies * keys + scores

    def limit(self, case: Case) -> float:
        if case.new > 1:
            if self._is_cpu:
                return machine.gemm_rate(machine.GEMM_SIZE)
            return device_limits.gemm_rate(self.dtype)
        if self._is_cpu:
            return machine.copy_bandwidth(machine.COPY_BYTES, physical_cores())
        return device_limits.copy_rate()

    def table(self, title: str, measured: list[Measured]) -> str:
        """Decodes or prefills: work a second of each contender, the limit, each one's share of it,
        and the first one's lead."""
        first, *others = self.contenders
        is_prefill = any(m.case.new > 1 for m in measured)
        unit, limit = ("GFLOP/s", "GEMM") if is_prefill else ("GB/s", "copy")
        columns = (
            title,
            f"{first} us",
            *(f"{name} {unit}" for name in self.contenders),
            f"{limit} {unit}",
            *(f"{name} % of {limit}" for name in self.contenders),
            *(f"{first} is faster than {name} by" for name in others),
        )
        return markdown_table(columns, [self._row(m) for m in measured])

    def _row(self, measured: Measured) -> list[str]:
        case = measured.case
        work = case.flops if case.new > 1 else case.kv_bytes(self.dtype)
        times = [measured.times.get(name, math.nan) for name in self.contenders]
        return [
            case.name,
            _number(1e6 * times[0]),
            *(_number(work / taken / 1e9) for taken in times),
            _number(measured.limit / 1e9),
            *(_number(100 * work / taken / measured.limit) for taken in times),
            *(_number(taken / times[0], digits=2) for taken in times[1:]),
        ]


def _free() -> None:
    gc.collect()
    mx.clear_cache()


def _number(value: float, *, digits: int = 1) -> str:
    return "-" if math.isnan(value) else f"{value:.{digits}f}"
