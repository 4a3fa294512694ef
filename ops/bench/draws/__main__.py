"""Draws of tokens by the device's own kernels against the same draws as a graph of MLX's.

``python -m ops.bench.draws [--rows N] [--vocabulary N] [--budget SECONDS]``. Logits are float32 on
a CPU, bfloat16 on a GPU. ``host`` is what the engine's thread works until the device has a draw,
which matters where the device is faster than that.
"""

from __future__ import annotations

import argparse
import logging
import statistics
import sys
from dataclasses import dataclass

# Before mlx, so that MLX finds the BLAS.
from backend_metal.device import select_device  # isort: skip
import mlx.core as mx
import numpy as np
from tqdm import tqdm

from backend_metal.engine.sampling.batch import (
    RowOptions,
    SamplingBatch,
    SamplingRow,
    build_sampling_batch,
    penalises,
)
from backend_metal.engine.sampling.choice import SPREAD, choose_draw
from backend_metal.engine.sampling.graph import draw_by_graph
from backend_metal.engine.sampling.kernel import Draw
from backend_metal.engine.sampling.masking import BITS, Masks
from deployments.backend import SamplingParams
from ops.bench.timing import markdown_table, median_seconds, seconds

CHAIN = 16
"""Draws handed over at once, so that none waits for the host."""


@dataclass(frozen=True)
class Case:
    name: str
    params: SamplingParams
    left_out: float | None = None
    """Part of the vocabulary that masks leave out; without masks where None."""


CASES = (
    Case("greedy", SamplingParams(temperature=0.0)),
    Case("greedy, masks leave out 1 %", SamplingParams(temperature=0.0), 0.01),
    Case("greedy, masks leave out 99 %", SamplingParams(temperature=0.0), 0.99),
    Case("temperature", SamplingParams()),
    Case("temperature, masks leave out 1 %", SamplingParams(), 0.01),
    Case("min_p 0.1", SamplingParams(min_p=0.1)),
    Case("top_k 20", SamplingParams(top_k=20)),
    Case("top_p 0.9", SamplingParams(top_p=0.9)),
    Case("top_k 20, top_p 0.9", SamplingParams(top_k=20, top_p=0.9)),
    Case(
        "top_p 0.9, both penalties",
        SamplingParams(top_p=0.9, presence_penalty=0.5, frequency_penalty=0.5),
    ),
)


def make_batch(case: Case, num_rows: int, vocab_size: int) -> SamplingBatch:
    random = np.random.default_rng(0)
    masks = None
    if case.left_out is not None:
        kept = random.random((num_rows, -(-vocab_size // BITS) * BITS)) >= case.left_out
        # Some token may come, whatever the vocabulary.
        kept[:, 0] = True
        words = np.packbits(kept, axis=1, bitorder="little").view(np.int32)
        masks = Masks(np.arange(num_rows, dtype=np.int32), words)
    counts = counts_rows = None
    if penalises(case.params):
        counts = mx.array(random.integers(0, 4, (num_rows, vocab_size)).astype(np.int32))
        counts_rows = np.arange(num_rows, dtype=np.int32)
    rows = RowOptions(
        [SamplingRow(case.params, seed, None) for seed in range(num_rows)], vocab_size
    )
    return build_sampling_batch(rows, np.arange(num_rows), masks, counts, counts_rows)


def device_seconds(draw: Draw, logits: mx.array, batch: SamplingBatch, budget: float) -> float:
    def run() -> None:
        mx.eval([draw(logits, batch) for _ in range(CHAIN)])

    return median_seconds(run, budget=budget) / CHAIN


def host_seconds(draw: Draw, logits: mx.array, batch: SamplingBatch) -> float:
    def hand_over() -> None:
        mx.async_eval(draw(logits, batch))  # type: ignore[no-untyped-call]

    taken = []
    for _ in range(CHAIN):
        taken.append(seconds(hand_over))
        mx.synchronize()
    return statistics.median(taken)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.draws", description=__doc__)
    parser.add_argument("--rows", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=151_936)
    parser.add_argument("--budget", type=float, default=1.0, help="seconds of each measurement")
    arguments = parser.parse_args()
    device = select_device("auto")
    mx.set_default_device(device.mlx)
    dtype = mx.float32 if device.mlx.type == mx.cpu else mx.bfloat16
    # Logs why, where they are wrong.
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    kernels = choose_draw(arguments.vocabulary, dtype, device)
    if kernels is draw_by_graph:
        sys.exit("Nothing to measure: no kernels are built for this device, or wrong ones.")
    shape = arguments.rows, arguments.vocabulary
    logits = (SPREAD * mx.random.normal(shape, key=mx.random.key(0))).astype(dtype)
    mx.eval(logits)
    rows = []
    for case in tqdm(CASES, desc="draws", unit="case"):
        batch = make_batch(case, *shape)
        device_s, graph_s = (
            device_seconds(draw, logits, batch, arguments.budget)
            for draw in (kernels, draw_by_graph)
        )
        host_s, graph_host_s = (
            host_seconds(draw, logits, batch) for draw in (kernels, draw_by_graph)
        )
        times = (device_s, graph_s, host_s, graph_host_s)
        rows.append((case.name, *(f"{one * 1e3:.3f}" for one in times)))
    columns = ("ms", "kernels", "graph", "kernels, host", "graph, host")
    sys.stdout.write(f"{device.name}, {shape[0]} rows of {shape[1]:,} tokens\n\n")
    sys.stdout.write(markdown_table(columns, rows) + "\n")


if __name__ == "__main__":
    main()
