"""Pomona's engine and mlx-lm's ``BatchGenerator``, each a function from prompts to tokens."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

# Before mlx, so that MLX finds the BLAS.
from backend_metal import LLM, SamplingParams  # isort: skip
import mlx_lm
from mlx_lm.generate import BatchGenerator

from ops.bench.engine.workload import Workload
from ops.bench.timing import seconds

Prompts = list[list[int]]
Run = Callable[[Prompts], int]
"""Returns how many tokens it generated."""


def pomona(llm: LLM, workload: Workload) -> Run:
    sampling = SamplingParams(temperature=0.0, max_tokens=workload.output_tokens, ignore_eos=True)

    def run(prompts: Prompts) -> int:
        llm.reset_prefix_cache()
        completions = llm.generate(prompts, sampling, show_progress=False)
        return sum(len(completion.token_ids) for completion in completions)

    return run


def batch_generator(directory: str, workload: Workload) -> Run:
    model = mlx_lm.load(directory)[0]

    def run(prompts: Prompts) -> int:
        return sum(1 for _ in responses(model, prompts, workload))

    return run


def responses(model: Any, prompts: Prompts, workload: Workload) -> Iterator[Any]:
    """mlx-lm's responses, one a token, with a ``uid`` that counts the prompts."""
    generator = BatchGenerator(model, completion_batch_size=workload.at_once)
    generator.insert(prompts, [workload.output_tokens] * len(prompts))
    while batch := generator.next_generated():
        yield from batch
    generator.close()


def tokens_per_second(run: Run, prompts: Prompts) -> float:
    generated = 0

    def timed() -> None:
        nonlocal generated
        generated = run(prompts)

    taken = seconds(timed)
    return generated / taken
