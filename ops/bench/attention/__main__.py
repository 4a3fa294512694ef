"""The attention operators against the machine's limits and against MLX's own attention.

``python -m ops.bench.attention [--memory-gb N] [--budget SECONDS]``. Shapes are Qwen3's: 16 query
heads, 8 key/value heads, head dim 128, float32; figures are medians. A decode step is held against
copy bandwidth, a prefill against the GEMM rate. ``reference`` gathers blocks and calls MLX;
``contiguous`` is MLX over keys and values without blocks. What needs more memory is left out.
"""

from __future__ import annotations

import argparse
import gc
import math
import sys
from dataclasses import dataclass

from tqdm import tqdm

# Before mlx, so that MLX finds the BLAS.
from backend_metal.attention.paths import PATHS  # isort: skip
import mlx.core as mx

from backend_metal.device import device_memory_bytes
from backend_metal.linux_cpu.blas import physical_cores
from ops.bench.attention.cases import Case, Paged, Run, contiguous
from ops.bench.machine import (
    COPY_BYTES,
    GEMM_SIZE,
    Machine,
    copy_bandwidth,
    gemm_rate,
    measure_machine,
)
from ops.bench.timing import markdown_table, median_seconds

DECODES = tuple(Case(context, batch) for context in (1024, 8192, 32768) for batch in (1, 8, 32))
DECODES += (Case(4096, 32),)
PREFILLS = (Case(2048, 1, new=2048), Case(8192, 1, new=512), Case(512, 8, new=512))

CONTIGUOUS = "contiguous"
COPIES = {"reference": 5, CONTIGUOUS: 3}
"""How often a contender holds the keys and values; once, if it is not here."""

Times = dict[str, float]
"""Seconds by contender; those that did not fit are missing."""


@dataclass(frozen=True)
class Measured:
    times: Times
    limit: float
    """Bytes or operations a second that the machine could do just before and after, averaged."""


def contenders() -> list[str]:
    return [*PATHS, CONTIGUOUS]


def measure(case: Case, budget: float, memory_bytes: float) -> Times:
    """Contenders share nothing but the case; each is set up, timed and freed in turn."""
    times: Times = {}
    paged: Paged | None = None
    for name in contenders():
        if case.kv_bytes * COPIES.get(name, 1) > memory_bytes:
            continue
        run: Run
        if name == CONTIGUOUS:
            paged = None
            run = contiguous(case)
        else:
            paged = paged or Paged(case)
            run = paged.run(name)  # type: ignore[arg-type]
        times[name] = median_seconds(run, budget=budget)
        del run
        gc.collect()
        mx.clear_cache()
    return times


def limit(case: Case) -> float:
    if case.new > 1:
        return gemm_rate(GEMM_SIZE)
    return copy_bandwidth(COPY_BYTES, physical_cores())


def row(measured: Measured, work: float) -> list[str]:
    """Work a second of each contender, the limit, the first one's share of it and its lead."""
    first, *others = (measured.times.get(name, math.nan) for name in contenders())
    return [
        *(number(work / taken / 1e9) for taken in (first, *others)),
        number(measured.limit / 1e9),
        number(100 * work / first / measured.limit),
        *(number(taken / first) for taken in others),
    ]


def number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"


def report(machine: Machine, decodes: dict[Case, Measured], prefills: dict[Case, Measured]) -> str:
    first, *others = contenders()
    leads = [f"{first} is faster than {name} by" for name in others]
    decode = markdown_table(
        (
            "decode, batch x context",
            *(f"{name} GB/s" for name in contenders()),
            "copy GB/s",
            f"{first} % of copy",
            *leads,
        ),
        [[f"{case.batch} x {case.context}", *row(m, case.kv_bytes)] for case, m in decodes.items()],
    )
    prefill = markdown_table(
        (
            "prefill, batch x new tokens of context",
            *(f"{name} GFLOP/s" for name in contenders()),
            "GEMM GFLOP/s",
            f"{first} % of GEMM",
            *leads,
        ),
        [
            [f"{case.batch} x {case.new} of {case.context}", *row(m, case.flops)]
            for case, m in prefills.items()
        ],
    )
    return f"{machine.report()}\n\n{decode}\n\n{prefill}\n"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.attention", description=__doc__)
    parser.add_argument("--memory-gb", type=float, help="two fifths of the machine's by default")
    parser.add_argument("--budget", type=float, default=4.0, help="seconds for one figure")
    arguments = parser.parse_args()
    memory_bytes = (arguments.memory_gb or 0.4e-9 * device_memory_bytes(mx.default_device())) * 1e9
    machine = measure_machine()
    with tqdm(total=len(DECODES) + len(PREFILLS), unit="case") as progress:

        def measured(case: Case) -> Measured:
            before = limit(case)
            times = measure(case, arguments.budget, memory_bytes)
            progress.update()
            return Measured(times, (before + limit(case)) / 2)

        decodes = {case: measured(case) for case in DECODES}
        prefills = {case: measured(case) for case in PREFILLS}
    sys.stdout.write(report(machine, decodes, prefills))


if __name__ == "__main__":
    main()
