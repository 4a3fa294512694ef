from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

# Before any test imports mlx-lm, which would leave fewer open files than load balancers need.
import backend_metal  # noqa: F401

pytest.register_assert_rewrite("tests.support")

from tests.support.secret_guard import guarded_logs  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What waits for whole servers goes first, so that workers beside it have something to do."""
    items.sort(key=lambda item: "e2e" not in item.path.parts)


@pytest.fixture(autouse=True)
def no_lost_tasks() -> Iterator[None]:
    """Tests that make evaluations fail leave errors in MLX's streams, and tasks that it lost: past
    ten of these the next evaluation would wait for ever."""
    yield
    if "backend_metal.native" in sys.modules:
        import mlx.core as mx

        from backend_metal import _native

        with suppress(RuntimeError):
            mx.synchronize()
        _native.testing.forget_lost_tasks()


@pytest.fixture(autouse=True)
def no_secret_is_logged() -> Iterator[None]:
    with guarded_logs() as guard:
        yield
    assert guard.leaks() == []
