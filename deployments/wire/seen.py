"""How much of a resumable stream its client had when its gateway was lost."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

Pairs = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Seen:
    tokens: Mapping[int, int] = field(default_factory=dict)
    """By choice, over all prompts: those whose events the client has, all of them."""
    cached_tokens: Mapping[int, int] = field(default_factory=dict)
    """By prompt, of those that have begun: what the usage is to say."""

    def as_json(self) -> tuple[Pairs, Pairs]:
        return [*self.tokens.items()], [*self.cached_tokens.items()]

    @classmethod
    def of_json(cls, pairs: tuple[Pairs, Pairs]) -> Self:
        tokens, cached_tokens = pairs
        return cls(dict(tokens), dict(cached_tokens))
