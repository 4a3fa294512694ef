"""What a request asks for that its answer goes without: the response's header lists it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_NAMES: ContextVar[dict[str, None] | None] = ContextVar("dropped", default=None)
"""Of the request that is being checked: models know no more of it than their own fields."""


def drop(name: str) -> None:
    """``name``: of a field, or a kind; letters, digits and ``_.:-``, as a header has it."""
    names = _NAMES.get()
    if names is not None:
        names[name] = None


@contextmanager
def dropped_names() -> Iterator[dict[str, None]]:
    """Each once, in order."""
    names: dict[str, None] = {}
    token = _NAMES.set(names)
    try:
        yield names
    finally:
        _NAMES.reset(token)
