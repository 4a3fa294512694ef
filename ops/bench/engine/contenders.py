"""Pomona's engine as what every contender is: a function from prompts to output tokens a second."""

from __future__ import annotations

from collections.abc import Callable

# Before mlx, so that MLX finds the BLAS.
from backend_metal import LLM, SamplingParams  # isort: skip

from ops.bench.timing import seconds

Prompts = list[list[int]]
Rate = Callable[[Prompts], float]


def pomona(llm: LLM, output_tokens: int) -> Rate:
    """The prefix cache is empty at the start of each run."""
    sampling = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)

    def rate(prompts: Prompts) -> float:
        llm.reset_prefix_cache()
        generated = 0

        def run() -> None:
            nonlocal generated
            completions = llm.generate(prompts, sampling, show_progress=False)
            generated = sum(len(completion.token_ids) for completion in completions)

        taken = seconds(run)
        return generated / taken

    return rate
