"""Garbage collections that leave alone what was there before: the suite's modules are a million
objects."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def new_objects_alone() -> Iterator[None]:
    """Meanwhile ``gc`` collects and lists only objects that are made meanwhile."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()
