"""All of it is of the ladder, which runs when a change can touch it."""

import pytest


def pytest_itemcollected(item: pytest.Item) -> None:
    if not item.get_closest_marker("exhaustive"):
        item.add_marker("ladder")
