"""The prompts of the engine benchmark, and the arithmetic that they cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ops.bench.engine.random_model import Parameters


@dataclass(frozen=True)
class Workload:
    """``num_prompts`` random prompts, lengths uniform in [``shortest``, ``longest``]."""

    num_prompts: int = 64
    shortest: int = 32
    longest: int = 512
    output_tokens: int = 64
    at_once: int = 16

    def prompts(self, vocab_size: int, every: int = 1) -> list[list[int]]:
        """``every``: a part of them that has about the mean length of all."""
        generator = np.random.default_rng(0)
        lengths = generator.integers(self.shortest, self.longest + 1, self.num_prompts)
        prompts = [generator.integers(0, vocab_size, length).tolist() for length in lengths]
        if every == 1:
            return prompts
        return sorted(prompts, key=len)[every // 2 :: every]

    def flops(self, prompts: list[list[int]], parameters: Parameters) -> int:
        """Two for each weight that a token meets; attention and all else left out."""
        inputs = sum(len(prompt) + self.output_tokens - 1 for prompt in prompts)
        outputs = len(prompts) * self.output_tokens
        return 2 * (parameters.backbone * inputs + parameters.head * outputs)
