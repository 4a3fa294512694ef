"""How long prompts and answers are: distributions of token counts."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np


class Lengths(Protocol):
    def draw(self, dice: np.random.Generator) -> int:
        """At least 1."""
        ...


@dataclass(frozen=True)
class Fixed:
    tokens: int

    def draw(self, dice: np.random.Generator) -> int:
        return self.tokens


@dataclass(frozen=True)
class Uniform:
    """Both ends included."""

    shortest: int
    longest: int

    def draw(self, dice: np.random.Generator) -> int:
        return int(dice.integers(self.shortest, self.longest + 1))


@dataclass(frozen=True)
class LogNormal:
    """Most are short and few are long, as with people; what is longer than ``longest`` is cut."""

    median: float
    sigma: float
    longest: int

    def draw(self, dice: np.random.Generator) -> int:
        drawn = dice.lognormal(math.log(self.median), self.sigma)
        return max(1, min(self.longest, round(drawn)))


SHAREGPT_INPUT = LogNormal(median=97, sigma=1.5, longest=1024)
SHAREGPT_OUTPUT = LogNormal(median=118, sigma=1.1, longest=1024)
"""As long on average as the prompts and answers, 217 and 200 tokens, that vLLM's benchmark takes
from ShareGPT's conversations."""


def parse_lengths(text: str, sharegpt: Lengths) -> Lengths:
    """``512``, ``32-512``, ``lognormal:MEDIAN:SIGMA:LONGEST`` or ``sharegpt``. Raises
    ``ValueError``."""
    if text == "sharegpt":
        return sharegpt
    kind, *numbers = text.split(":")
    if kind == "lognormal" and len(numbers) == 3:
        lengths: Lengths = LogNormal(float(numbers[0]), float(numbers[1]), int(numbers[2]))
        least = min(float(numbers[0]), float(numbers[1]), int(numbers[2]))
    elif "-" in text:
        shortest, longest = map(int, text.split("-", 1))
        lengths, least = Uniform(shortest, longest), min(shortest, longest - shortest + 1)
    else:
        lengths, least = Fixed(int(text)), int(text)
    if least <= 0:
        raise ValueError(f"lengths must be positive, and the shortest come first: {text}")
    return lengths
