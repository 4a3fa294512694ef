from __future__ import annotations

from collections.abc import Iterator

import pytest

pytest_plugins = [
    f"tests.support.{name}"
    for name in ("fuzzing", "http_clients", "kinds", "order", "skips", "tables")
]
pytest.register_assert_rewrite("tests.support")

from tests.support.secret_guard import guarded_logs  # noqa: E402


@pytest.fixture(autouse=True)
def no_secret_is_logged() -> Iterator[None]:
    with guarded_logs() as guard:
        yield
    assert guard.leaks() == []
