"""The page's fleet view of a cluster: its engines, and one of them that is killed."""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.support.cluster.cluster import Cluster
from tests.support.cluster.events import NUM_ENGINES
from tests.support.cluster.host import Host
from tests.support.cluster.hosts import API_KEY
from tests.support.cluster.losses import ENGINE_PROCESS
from tests.support.cluster.status import gateway_url, wait_until
from tests.support.page.browser import Watched, chromium

pytestmark = pytest.mark.cluster
logger = logging.getLogger(__name__)

SEEN_WITHIN_S = 2.0
GONE = ("lost", "silent")
PICTURES = os.environ.get("POMONA_PICTURES")
"""A folder for pictures of what was seen."""
LOSSES: dict[str, Callable[[Host], None]] = {
    "its process ends": lambda host: host.kill_process(ENGINE_PROCESS),
    "its power fails": Host.kill,
}


def views(gateway: str) -> Iterator[dict[str, Any]]:
    """As they come, for ever."""
    headers = {"Accept": "text/event-stream", "Authorization": f"Bearer {API_KEY}"}
    with httpx.Client(base_url=gateway, headers=headers, timeout=30) as client:
        while True:
            with client.stream("GET", "/v1/fleet") as response:
                response.raise_for_status()
                for line in response.iter_lines():
                    if line.startswith("data: "):
                        yield json.loads(line.removeprefix("data: "))


def engines(view: dict[str, Any]) -> dict[str, tuple[str, str]]:
    """Address and state of each, by its id; those that are gone are shown for a while."""
    return {
        one["id"]: (host["node"], one["state"]) for host in view["hosts"] for one in host["engines"]
    }


def are_ready(view: dict[str, Any]) -> bool:
    return [state for _, state in engines(view).values()] == ["ready"] * NUM_ENGINES


@pytest.fixture
def page(running: Cluster) -> Iterator[Watched]:
    """The fleet view in a browser that has the key."""
    with chromium() as browser:
        context = browser.new_context(viewport={"width": 1180, "height": 760})
        context.add_init_script(f"sessionStorage.setItem('pomona.key', '{API_KEY}')")
        one = Watched(context.new_page(), gateway_url(running.hosts.edges[0]))
        one.page.goto(f"{one.url}/#/fleet")
        yield one
        assert one.faults == []


@pytest.mark.parametrize("how", LOSSES)
def test_an_engine_that_is_killed_is_seen_within_two_seconds(
    running: Cluster, page: Watched, how: str
) -> None:
    wait_until(lambda: running.is_serving(NUM_ENGINES), "all engines serve")
    host = running.hosts.workers[-1]
    told = views(page.url)
    before = engines(next(filter(are_ready, told)))
    [victim] = [name for name, (node, _) in before.items() if node == host.address]
    page.page.locator(".engine[data-state=ready]").nth(NUM_ENGINES - 1).wait_for()
    picture(page, f"{how}, before")
    moment = time.time()
    LOSSES[how](host)
    view = next(view for view in told if engines(view)[victim][1] in GONE)
    seen_after_s = view["time"] - moment
    logger.info("%s: seen after %.2f s", how, seen_after_s)
    card = page.page.locator(f'.engine[data-id="{victim}"]')
    card.and_(page.page.locator("[data-state=lost], [data-state=silent]")).wait_for()
    picture(page, f"{how}, after")
    others = [state for name, (_, state) in engines(view).items() if name != victim]
    assert others == ["ready"] * (NUM_ENGINES - 1)
    latest = view["events"][0]
    assert (latest["kind"] in GONE, latest["engine"]) == (True, victim)
    wait_until(lambda: victim not in {one.replica_id for one in running.engines}, "it is known")
    if not host.is_up:
        running.hosts.start(host)
    wait_until(lambda: running.is_serving(NUM_ENGINES), "another engine is there")
    assert 0.0 < seen_after_s <= SEEN_WITHIN_S


def picture(page: Watched, name: str) -> None:
    if PICTURES:
        page.page.screenshot(path=Path(PICTURES) / f"{name}.png")
