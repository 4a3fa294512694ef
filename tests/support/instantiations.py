"""Which instantiations of a kernel the ladder proves; the others are for `make test-exhaustive`."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import pytest

T = TypeVar("T")

TYPICAL_HEAD_DIMS = [(64, 64), (128, 128), (192, 128), (256, 256), (512, 512), (576, 512)]
"""Those of most models."""


def marked(cases: Iterable[tuple[Any, ...]], in_ladder: Callable[..., bool]) -> list[Any]:
    """``cases`` as parameters of a test, each in the ladder or only in the exhaustive run."""
    return [
        pytest.param(*case, marks=() if in_ladder(*case) else pytest.mark.exhaustive)
        for case in cases
    ]


def is_turn_of(choice: T, choices: Sequence[T], turn: int) -> bool:
    """Whether ``choice`` is the one of ``choices`` that has this turn: all of them over many turns,
    one at each."""
    return choices.index(choice) == turn % len(choices)
