"""What tests that make evaluations fail leave behind in MLX."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import pytest


@pytest.fixture(autouse=True)
def no_lost_tasks() -> Iterator[None]:
    """Forgets the errors in MLX's streams, and the tasks that it lost: past ten of these the next
    evaluation would wait for ever."""
    yield
    import mlx.core as mx

    from backend_metal import _native

    with suppress(RuntimeError):
        mx.synchronize()
    _native.forget_lost_tasks()
