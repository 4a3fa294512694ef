"""What the two processes say to each other, pickled: neither hears anybody else."""

from __future__ import annotations

import logging
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from deployments.backend.delta import Delta, Prefill
from deployments.backend.errors import BackendError
from deployments.backend.pooling import Pooled
from deployments.backend.stats import BackendStats

Item = Delta | Pooled | Prefill

REPORT_EVERY = 8
"""Items of a stream after which its reader says that they were read. The engine may be as far ahead
of that: with less, both would wait for each other."""


@dataclass(frozen=True)
class Failure:
    """An exception. The backend's own kinds, and ``ValueError``, are the same on the other side;
    any other is a ``RuntimeError`` there that names it."""

    kind: type[Exception]
    args: tuple[Any, ...]
    state: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, error: BaseException) -> Failure:
        if isinstance(error, BackendError):
            return cls(type(error), error.args, vars(error))
        if isinstance(error, ValueError):
            return cls(ValueError, (str(error),))
        return cls(RuntimeError, (f"{type(error).__name__}: {error}",))

    def error(self) -> Exception:
        # Not by a constructor: some make their message of other arguments.
        made = self.kind.__new__(self.kind)
        made.args = self.args
        vars(made).update(self.state)
        return made


def ignore(*told: Any) -> None:
    """Hears of what is made for a request on the side where nobody reads it."""


class Ask(NamedTuple):
    """To the engine: call a method of the backend."""

    number: int
    """By which its answer is known."""
    method: str
    arguments: tuple[Any, ...]
    options: dict[str, Any]


class Stream(NamedTuple):
    """To the engine: run ``generate`` or ``pool``."""

    number: int
    method: str
    request: Any


class Taken(NamedTuple):
    """To the engine: so many more items of a stream have been read."""

    number: int
    num_items: int


class Leave(NamedTuple):
    """To the engine: nobody waits any longer."""

    number: int


class Made(NamedTuple):
    """From the engine: an item of a stream, as soon as it is made."""

    number: int
    item: Item
    place: int
    """Of the input that it is of, in ``pool``."""


class Ended(NamedTuple):
    """From the engine: a call or a stream is over."""

    number: int
    failure: Failure | None
    value: Any = None
    """What a method returned."""


class Stats(NamedTuple):
    """From the engine."""

    stats: BackendStats


class Logged(NamedTuple):
    """From the engine: a line of its log."""

    record: logging.LogRecord


ToEngine = Ask | Stream | Taken | Leave
FromEngine = Made | Ended | Stats | Logged
