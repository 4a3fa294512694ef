"""Batches of equal prompts: this engine against a plain loop over mlx-lm's model."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

# Before mlx, so that MLX finds the BLAS.
from backend_metal import LLM  # isort: skip
import numpy as np
from tqdm import tqdm

from ops.bench.engine.contenders import pomona
from ops.bench.engine.peer import Peer
from ops.bench.timing import markdown_table

PROMPT_TOKENS = 64


@dataclass(frozen=True)
class UniformRates:
    """Output tokens a second, by round."""

    batch: int
    pomona: Sequence[float]
    plain_loop: Sequence[float]


def compare_uniform(
    llm: LLM,
    peer: Peer,
    vocab_size: int,
    batches: Sequence[int],
    output_tokens: int,
    rounds: int,
) -> list[UniformRates]:
    """Both take turns; a first run of each compiles its kernels."""
    contenders = (pomona(llm, output_tokens), peer.rate("plain_loop", output_tokens))
    measured = []
    for batch in tqdm(batches, desc="uniform batches"):
        prompts = np.random.default_rng(batch).integers(0, vocab_size, (batch, PROMPT_TOKENS))
        rates = [[rate(prompts.tolist()) for rate in contenders] for _ in range(rounds + 1)][1:]
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
