"""Output tokens a second of the engine and of mlx-lm's BatchGenerator, on the same prompts.

``python -m ops.bench.engine [--model DIR] [--repeats N]`` prints a Markdown table. The two take
turns, so that whatever else the machine does hits both; figures are medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.generate import BatchGenerator

from backend_metal import LLM, SamplingParams
from backend_metal.models.checkpoint import DEMO_DIRECTORY


@dataclass(frozen=True)
class Workload:
    name: str
    num_prompts: int
    shortest: int
    longest: int
    output_tokens: int
    max_num_seqs: int

    def prompts(self, vocab_size: int) -> list[list[int]]:
        generator = np.random.default_rng(0)
        lengths = generator.integers(self.shortest, self.longest + 1, self.num_prompts)
        return [generator.integers(0, vocab_size, length).tolist() for length in lengths]


WORKLOADS = (
    Workload("one at a time", 4, 64, 64, 64, 1),
    Workload("8 at once", 16, 64, 256, 64, 8),
    Workload("32 at once", 64, 64, 512, 64, 32),
)


def bench_pomona(model: str, workload: Workload) -> Callable[[list[list[int]]], None]:
    llm = LLM(model, max_num_seqs=workload.max_num_seqs, prefix_caching=False)
    sampling = SamplingParams(temperature=0.0, max_tokens=workload.output_tokens, ignore_eos=True)

    def run(prompts: list[list[int]]) -> None:
        llm.generate(prompts, sampling, show_progress=False)

    return run


def bench_mlx_lm(model: str, workload: Workload) -> Callable[[list[list[int]]], None]:
    loaded, _ = mlx_lm.load(model)[:2]
    if mx.default_device() == mx.cpu:
        loaded.set_dtype(mx.float32)

    def run(prompts: list[list[int]]) -> None:
        generator = BatchGenerator(
            loaded,
            stop_tokens=[],
            completion_batch_size=workload.max_num_seqs,
            prefill_batch_size=min(8, workload.max_num_seqs),
        )
        generator.insert(prompts, [workload.output_tokens] * len(prompts))
        while generator.next_generated():
            pass
        generator.close()

    return run


def tokens_per_second(run: Callable[[list[list[int]]], None], workload: Workload) -> float:
    prompts = workload.prompts(vocab_size=1000)
    start = time.perf_counter()
    run(prompts)
    return workload.num_prompts * workload.output_tokens / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default=str(DEMO_DIRECTORY), help="directory or Hugging Face id")
    parser.add_argument("--repeats", type=int, default=3)
    arguments = parser.parse_args()
    rows = ["| workload | pomona tok/s | mlx-lm tok/s | ratio |", "| --- | ---: | ---: | ---: |"]
    for workload in WORKLOADS:
        runs = (
            bench_pomona(arguments.model, workload),
            bench_mlx_lm(arguments.model, workload),
        )
        rates: list[list[float]] = []
        for repeat in range(arguments.repeats):
            rates.append([tokens_per_second(run, workload) for run in runs])
            print(f"{workload.name}: {repeat + 1}/{arguments.repeats}", file=sys.stderr)
        ours, theirs = (statistics.median(column) for column in zip(*rates, strict=True))
        ratio = statistics.median(mine / peer for mine, peer in rates)
        rows.append(f"| {workload.name} | {ours:.0f} | {theirs:.0f} | {ratio:.2f} |")
    print("\n".join(rows))


if __name__ == "__main__":
    main()
