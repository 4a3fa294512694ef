"""Texts that are made up, of a given number of tokens."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ops.bench.serve.conversation import Text

WORDS = (
    *("apple", "basket", "blossom", "branch", "cellar", "cherry", "cider", "early", "farmer"),
    *("fence", "field", "frost", "fruit", "garden", "gather", "graft", "grass", "green", "grows"),
    *("harvest", "hedge", "ladder", "late", "leaf", "market", "meadow", "morning", "old"),
    *("orchard", "pear", "plum", "press", "prune", "quince", "rain", "ripens", "river", "root"),
    *("season", "seed", "shade", "soil", "spring", "stem", "summer", "sun", "sweet", "tree"),
    *("under", "valley", "water", "weather", "wind", "winter", "wood", "year", "yellow", "young"),
)


class Writer(Protocol):
    def write(self, num_tokens: int, dice: np.random.Generator) -> Text: ...


@dataclass(frozen=True)
class TokenWriter:
    """Ids of tokens, exactly as many: for completions."""

    vocab_size: int

    def write(self, num_tokens: int, dice: np.random.Generator) -> Text:
        return tuple(dice.integers(0, self.vocab_size, num_tokens).tolist())


class WordWriter:
    """Words until there are as many tokens, or a part of a word more.

    Tokenizers count a word with the blank before it by itself, so that a sum is exact.
    """

    def __init__(self, count: Callable[[str], int] = lambda text: 1) -> None:
        """``count``: tokens of a text; by default a word is one, which most vocabularies have."""
        self._sizes = [max(1, count(f" {word}")) for word in WORDS]

    def write(self, num_tokens: int, dice: np.random.Generator) -> Text:
        words: list[str] = []
        while num_tokens > 0:
            # More at a time than one by one, which is slow.
            for index in dice.integers(0, len(WORDS), min(num_tokens, 1024)).tolist():
                if num_tokens <= 0:
                    break
                words.append(f" {WORDS[index]}")
                num_tokens -= self._sizes[index]
        return "".join(words)


def tokens_of(folder: str) -> Callable[[str], int]:
    """A count by the tokenizer of a model's folder."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(f"{folder}/tokenizer.json")
    return lambda text: len(tokenizer.encode(text, add_special_tokens=False).ids)
