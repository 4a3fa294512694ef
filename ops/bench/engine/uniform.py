"""Batches of equal prompts: this engine against a plain loop over mlx-lm's model.

The loop does nothing but the model's steps, one ahead of the host as mlx-lm does it: no admission,
no text, no limits. It is what serving costs a user nothing beside.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Before mlx, so that MLX finds the BLAS.
from backend_metal import LLM, SamplingParams  # isort: skip
import mlx.core as mx
import mlx_lm
import numpy as np
from mlx_lm.models.cache import make_prompt_cache
from tqdm import tqdm

from ops.bench.engine.contenders import Prompts, Run, tokens_per_second
from ops.bench.timing import markdown_table

PROMPT_TOKENS = 64


@dataclass(frozen=True)
class UniformRates:
    """Output tokens a second, by round."""

    batch: int
    pomona: Sequence[float]
    plain_loop: Sequence[float]


def plain_loop(directory: str, output_tokens: int) -> Run:
    model = mlx_lm.load(directory)[0]

    def run(prompts: Prompts) -> int:
        cache = make_prompt_cache(model)
        tokens = mx.argmax(model(mx.array(prompts), cache=cache)[:, -1], axis=-1)
        mx.async_eval(tokens)  # type: ignore[no-untyped-call]
        generated = 0
        for _ in range(output_tokens - 1):
            following = mx.argmax(model(tokens[:, None], cache=cache)[:, -1], axis=-1)
            mx.async_eval(following)  # type: ignore[no-untyped-call]
            generated += np.array(tokens).size
            tokens = following
        return generated + np.array(tokens).size

    return run


def compare_uniform(
    directory: str,
    llm: LLM,
    vocab_size: int,
    batches: Sequence[int],
    output_tokens: int,
    rounds: int,
) -> list[UniformRates]:
    """Both take turns in one process; a first run of each compiles its kernels."""
    sampling = SamplingParams(temperature=0.0, max_tokens=output_tokens, ignore_eos=True)
    loop = plain_loop(directory, output_tokens)

    def ours(prompts: Prompts) -> int:
        llm.reset_prefix_cache()
        completions = llm.generate(prompts, sampling, show_progress=False)
        return sum(len(completion.token_ids) for completion in completions)

    measured = []
    for batch in tqdm(batches, desc="uniform batches"):
        prompts = np.random.default_rng(batch).integers(0, vocab_size, (batch, PROMPT_TOKENS))
        rates = [
            [tokens_per_second(run, prompts.tolist()) for run in (ours, loop)]
            for _ in range(rounds + 1)
        ][1:]
        measured.append(UniformRates(batch, *zip(*rates, strict=True)))
    return measured


def report_uniform(measured: Sequence[UniformRates], output_tokens: int) -> str:
    rows = []
    for rates in measured:
        pairs = zip(rates.pomona, rates.plain_loop, strict=True)
        rows.append(
            (
                f"{rates.batch} x ({PROMPT_TOKENS} in, {output_tokens} out)",
                f"{statistics.median(rates.pomona):.1f}",
                f"{statistics.median(rates.plain_loop):.1f}",
                f"{statistics.median(ours / loop for ours, loop in pairs):.2f}",
            )
        )
    columns = ("output tok/s", "pomona", "plain loop", "pomona is faster by")
    return markdown_table(columns, rows)
