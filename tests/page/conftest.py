"""A browser, and a fleet for each file of tests for it to look at."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.page.browser import Watched, chromium
from tests.support.page.page_fleet import PageFleet, page_fleet

if TYPE_CHECKING:
    from playwright.sync_api import Browser

Open = Callable[..., Watched]


@pytest.fixture(scope="package")
def browser() -> Iterator[Browser]:
    with chromium() as browser:
        yield browser


@pytest.fixture(scope="module")
def shared_fleet() -> Iterator[PageFleet]:
    with page_fleet() as fleet:
        yield fleet


@pytest.fixture
def fleet(shared_fleet: PageFleet) -> PageFleet:
    shared_fleet.reset()
    return shared_fleet


@pytest.fixture
def opened(browser: Browser, fleet: PageFleet) -> Iterator[Open]:
    """Opens a view of ``fleet`` in a browser without a past. Whatever it was, nothing went wrong
    in it and it asked nobody else."""
    contexts, watched = [], []

    def open_view(view: str = "chat", url: str = "", **options: Any) -> Watched:
        context = browser.new_context(**{"reduced_motion": "reduce", **options})
        contexts.append(context)
        one = Watched(context.new_page(), url or fleet.url)
        watched.append(one)
        one.page.goto(f"{one.url}/#/{view}")
        return one

    yield open_view
    for one in watched:
        assert one.faults == []
        assert [url for url in one.requests if not url.startswith((one.url, "data:"))] == []
    for context in contexts:
        context.close()
