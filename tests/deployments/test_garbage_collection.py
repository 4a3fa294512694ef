from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from deployments.serve.garbage_collection import spare_what_is_there


class Knot:
    """Something that only a collection frees."""

    def __init__(self) -> None:
        self.myself = self


@pytest.fixture
def not_frozen_afterwards() -> Iterator[None]:
    yield
    gc.unfreeze()


@pytest.mark.usefixtures("not_frozen_afterwards")
def test_what_is_there_is_spared_and_what_was_garbage_is_gone() -> None:
    kept, garbage = Knot(), weakref.ref(Knot())
    spare_what_is_there()
    assert garbage() is None
    visited = {id(one) for one in gc.get_objects()}
    assert id(kept) not in visited
    later = Knot()
    seen = weakref.ref(later)
    del later
    gc.collect()
    assert seen() is None
