"""All of it is of the ladder, which runs when a change can touch it."""

import pytest

from tests.support.lost_tasks import no_lost_tasks as no_lost_tasks


def pytest_itemcollected(item: pytest.Item) -> None:
    if not item.get_closest_marker("exhaustive"):
        item.add_marker("ladder")
