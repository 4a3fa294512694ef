from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import suppress

import pytest

# Before any test imports mlx-lm, which would leave fewer open files than load balancers need.
import backend_metal  # noqa: F401

pytest_plugins = ["tests.support.tables"]
pytest.register_assert_rewrite("tests.support")

from tests.support.order import ordered  # noqa: E402
from tests.support.secret_guard import guarded_logs  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {file: place for place, file in enumerate(ordered(item.path for item in items))}
    items.sort(key=lambda item: places[item.path])


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
