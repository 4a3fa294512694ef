"""The fleet, in a browser: engines at work, one that is killed, and the stream that moves."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from deployments.gateway.watch import routes
from tests.page.conftest import Open
from tests.support.page.page_fleet import PageFleet, page_fleet


@pytest.fixture
def shared_fleet() -> Iterator[PageFleet]:
    """Of each test its own: engines die here."""
    with page_fleet(3) as fleet:
        yield fleet


def test_an_engine_at_work_is_killed_and_its_stream_moves(opened: Open, fleet: PageFleet) -> None:
    watcher, one = opened("fleet"), opened()
    watcher.page.locator(".engine[data-state=ready]").nth(2).wait_for()
    watcher.shows(".host h2", ["mini-1", "mini-2", "mini-3"])
    fleet.says("one two three four five six")
    for engine in fleet.engines:
        fleet.call(lambda engine=engine: engine.backend.hold(after_tokens=3))  # type: ignore[misc]
    one.ask("Count")
    one.page.locator(".assistant", has_text="one two three").wait_for()
    victim = fleet.serving()
    card = watcher.page.locator(f'.engine[data-id="{victim.replica.replica_id}"]')
    card.locator(".lane .generated").wait_for(state="attached")
    card.locator(".load", has_text="1 of 16 running").wait_for()
    for engine in fleet.engines:
        if engine is not victim:
            fleet.call(engine.backend.let_go)
    fleet.kill(victim)
    card.and_(watcher.page.locator("[data-state=lost]")).wait_for()
    card.locator(".lane").wait_for(state="detached")
    watcher.page.locator(".host.gone").wait_for()
    watcher.page.locator(".feed .lost").wait_for()
    watcher.page.locator(".feed .moved", has_text="at token 3").wait_for()
    # Whose answer it was has it whole, and is told.
    one.answered("one two three four five six")
    dead = victim.replica.node.rpartition(".")[2]
    meta = one.page.locator(".meta").inner_text()
    assert f"moved from mini-{dead} to mini-" in meta
    assert "at token 3" in meta


def test_all_numbers_of_an_engine(opened: Open, fleet: PageFleet) -> None:
    one = opened("fleet")
    one.page.get_by_role("button", name="all numbers of engine engine-2").click()
    dialog = one.page.get_by_role("dialog", name="demo")
    dialog.filter(has_text="of 1000 blocks").wait_for()
    dialog.get_by_role("button", name="Close").click()
    dialog.wait_for(state="detached")


def test_a_gateway_that_is_gone_is_told_of(
    opened: Open, fleet: PageFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A browser that is offline keeps the connections that it has.
    monkeypatch.setattr(routes, "MOST_EVENTS", 1)
    one = opened("fleet")
    one.page.locator(".engine").first.wait_for()
    one.page.context.set_offline(True)
    one.page.locator(".stale .pulse", has_text="Not live").wait_for()
    one.page.context.set_offline(False)
    one.page.locator(".pulse", has_text="Live").wait_for()
