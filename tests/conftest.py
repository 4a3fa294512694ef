from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest_plugins = ["tests.support.kinds", "tests.support.skips", "tests.support.tables"]
pytest.register_assert_rewrite("tests.support")

from tests.support.order import ordered  # noqa: E402
from tests.support.secret_guard import guarded_logs  # noqa: E402


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    places = {file: place for place, file in enumerate(ordered(item.path for item in items))}
    items.sort(key=lambda item: places[item.path])


@pytest.fixture(autouse=True)
def no_secret_is_logged() -> Iterator[None]:
    with guarded_logs() as guard:
        yield
    assert guard.leaks() == []
