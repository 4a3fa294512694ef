"""Requests whose prompts begin alike in groups: system prompts, documents, few-shot examples."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ops.bench.routing.fleet import Request

VOCAB_SIZE = 32_000


@dataclass(frozen=True)
class SharedPrefixes:
    """``num_prefixes`` prefixes, each before ``repeats`` different suffixes, in shuffled order."""

    num_prefixes: int = 40
    repeats: int = 10
    prefix_tokens: int = 512
    suffix_tokens: tuple[int, int] = (16, 128)
    output_tokens: tuple[int, int] = (16, 96)
    requests_per_second: float = 16.0
    num_gateways: int = 2
    hot_share: float = 0.0
    """Part of all requests that have the first prefix, whatever ``repeats`` says."""
    seed: int = 0

    @property
    def ideal_hit_tokens(self) -> int:
        """Every prefix is computed once in the whole fleet. For ``hot_share`` 0."""
        return self.num_prefixes * (self.repeats - 1) * self.prefix_tokens

    def requests(self) -> list[Request]:
        """Arrivals are a Poisson process; each goes through a gateway drawn by lot."""
        rng = np.random.default_rng(self.seed)
        prefixes = rng.integers(0, VOCAB_SIZE, (self.num_prefixes, self.prefix_tokens))
        order = rng.permutation(np.repeat(np.arange(self.num_prefixes), self.repeats))
        order[rng.random(len(order)) < self.hot_share] = 0
        arrivals = np.cumsum(rng.exponential(1.0 / self.requests_per_second, len(order)))
        gateways = rng.integers(0, self.num_gateways, len(order))
        return [
            Request(
                at=float(at),
                gateway=int(gateway),
                prompt=(
                    *prefixes[prefix].tolist(),
                    *rng.integers(0, VOCAB_SIZE, rng.integers(*self.suffix_tokens)).tolist(),
                ),
                output_tokens=int(rng.integers(*self.output_tokens)),
            )
            for at, gateway, prefix in zip(arrivals, gateways, order, strict=True)
        ]
