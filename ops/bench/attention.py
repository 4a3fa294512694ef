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

from tqdm import tqdm

# Before mlx, so that MLX finds the BLAS.
from backend_metal import attention  # isort: skip
import mlx.core as mx

from backend_metal.device import device_memory_bytes
from ops.bench.attention_cases import Case, Paged, Run, contiguous
from ops.bench.machine import Machine, measure_machine
from ops.bench.timing import markdown_table, median_seconds

DECODES = tuple(Case(context, batch) for context in (1024, 8192, 32768) for batch in (1, 8, 32))
DECODES += (Case(4096, 32),)
PREFILLS = (Case(2048, 1, new=2048), Case(8192, 1, new=512), Case(512, 8, new=512))

CONTIGUOUS = "contiguous"
COPIES = {"reference": 5, CONTIGUOUS: 3}
"""How often a contender holds the keys and values; once, if it is not here."""

Times = dict[str, float]
"""Seconds by contender; those that did not fit are missing."""


def contenders() -> list[str]:
    return [*attention.attention_launches(), CONTIGUOUS]


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


def row(times: Times, work: float, limit: float) -> list[str]:
    """Work a second of each contender, the first one's share of the limit, and its lead."""
    first, *others = (times.get(name, math.nan) for name in contenders())
    return [
        *(number(work / taken / 1e9) for taken in (first, *others)),
        number(100 * work / first / limit),
        *(number(taken / first) for taken in others),
    ]


def number(value: float) -> str:
    return "-" if math.isnan(value) else f"{value:.1f}"


def report(machine: Machine, decodes: dict[Case, Times], prefills: dict[Case, Times]) -> str:
    first, *others = contenders()
    leads = [f"{first} is faster than {name} by" for name in others]
    bandwidth, flops = machine.copy_bytes_per_second, machine.gemm_flops
    decode = markdown_table(
        (
            "decode, batch x context",
            *(f"{name} GB/s" for name in contenders()),
            "% of copy bandwidth",
            *leads,
        ),
        [[f"{c.batch} x {c.context}", *row(t, c.kv_bytes, bandwidth)] for c, t in decodes.items()],
    )
    prefill = markdown_table(
        (
            "prefill, batch x new tokens of context",
            *(f"{name} GFLOP/s" for name in contenders()),
            "% of GEMM rate",
            *leads,
        ),
        [
            [f"{c.batch} x {c.new} of {c.context}", *row(t, c.flops, flops)]
            for c, t in prefills.items()
        ],
    )
    return f"{machine.report()}\n\n{decode}\n\n{prefill}\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory-gb", type=float, help="two fifths of the machine's by default")
    parser.add_argument("--budget", type=float, default=4.0, help="seconds for one figure")
    arguments = parser.parse_args()
    memory_bytes = (arguments.memory_gb or 0.4e-9 * device_memory_bytes(mx.default_device())) * 1e9
    machine = measure_machine()
    with tqdm(total=len(DECODES) + len(PREFILLS), unit="case") as progress:

        def measured(case: Case) -> Times:
            times = measure(case, arguments.budget, memory_bytes)
            progress.update()
            return times

        decodes = {case: measured(case) for case in DECODES}
        prefills = {case: measured(case) for case in PREFILLS}
    machine = machine.or_better(measure_machine())
    sys.stdout.write(report(machine, decodes, prefills))


if __name__ == "__main__":
    main()
