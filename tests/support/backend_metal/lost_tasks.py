"""A fixture for the folders whose tests make evaluations fail."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import mlx.core as mx
import pytest

from backend_metal import _native


@pytest.fixture(autouse=True)
def no_lost_tasks() -> Iterator[None]:
    """Clears the errors in MLX's streams and the tasks that it lost: past ten of these the next
    evaluation would wait for ever."""
    yield
    with suppress(RuntimeError):
        mx.synchronize()
    _native.testing.forget_lost_tasks()
