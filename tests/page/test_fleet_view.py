"""The fleet, in a browser: engines at work, one that is killed, and the stream that moves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING

import pytest

from deployments.backend import BackendStats
from deployments.gateway.watch import routes
from deployments.gateway.watch.rates import HISTORY_EVERY_S
from deployments.replica.reading import EngineReader
from deployments.wire.reading import EngineReading
from tests.page.conftest import Open
from tests.support.clock import Clock
from tests.support.page.browser import PATIENCE_MS, Watched
from tests.support.page.page_fleet import PageFleet, page_fleet
from tests.support.page.told_backend import ToldBackend

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator


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


def test_a_host_tells_its_memory_and_its_heat(opened: Open, fleet: PageFleet) -> None:
    one = opened("fleet")
    cards = one.page.locator(".host")
    cards.nth(2).locator(".signs span").first.wait_for()
    # As ``page_fleet`` has them.
    told = [card.locator(".signs span").all_inner_texts() for card in cards.all()]
    assert told == [
        ["memory pressure normal", "warm"],
        ["memory pressure normal", "cool"],
        ["memory pressure warning", "warm"],
    ]
    warned = [card.locator(".signs .warn").all_inner_texts() for card in cards.all()]
    assert warned == [["warm"], [], ["memory pressure warning", "warm"]]
    chips = ["Apple M4 · 10.0.0.1", "Apple M2 Ultra · 10.0.0.2", "Apple M1 · 10.0.0.3"]
    one.shows(".host > .soft", chips)
    used = ["21.3 GiB of 32.0 GiB", "48.0 GiB of 64.0 GiB", "12.8 GiB of 16.0 GiB"]
    one.shows(".host > .meter .value", used)


def test_the_bar_of_a_kv_cache_has_what_is_held_and_what_is_cached(
    opened: Open, fleet: PageFleet
) -> None:
    watcher, one = opened("fleet"), opened()
    for engine in fleet.engines:
        fleet.call(lambda engine=engine: engine.backend.hold(after_tokens=1))  # type: ignore[misc]
    one.ask("Hold some blocks")
    one.page.locator(".assistant.running", has_text="You").wait_for()
    served = fleet.serving().replica.replica_id
    bar = watcher.page.locator(f'.engine[data-id="{served}"] .meter')
    bar.filter(has_text="6 % held, 4 % cached").wait_for()
    track = bar.locator(".track")
    whole = width(track)
    assert width(track.locator(".held")) == pytest.approx(0.06 * whole, abs=1)
    assert width(track.locator(".cached")) == pytest.approx(0.04 * whole, abs=1)
    for engine in fleet.engines:
        fleet.call(engine.backend.let_go)
    # Nobody holds them any more, and a prompt would find them.
    bar.filter(has_text="0 % held, 4 % cached").wait_for()


def width(locator: Locator) -> float:
    box = locator.bounding_box()
    assert box is not None
    return box["width"]


def test_the_curve_is_that_of_the_last_ten_minutes(browser: Browser) -> None:
    from playwright.sync_api import expect

    rates = [10, 40, 20, 5]
    clock = Clock()
    with page_fleet(now=clock) as fleet:
        fleet.call(lambda: pace(fleet.engines[0].backend, clock, rates))
        watched = Watched(browser.new_page(), fleet.url)
        watched.page.goto(f"{fleet.url}/#/fleet")
        curve = watched.page.locator(".spark .curve")
        # A point for each ten seconds, the last is now; the highest touches the top.
        points = "55.5,14.50 56.5,1.00 57.5,10.00 58.5,16.75 59.5,16.75"
        expect(curve).to_have_attribute("points", points, timeout=PATIENCE_MS)
        watched.shows(".speed strong", ["5"])
        box = curve.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) > 0
        watched.page.close()


def pace(backend: ToldBackend, clock: Clock, rates: list[int]) -> None:
    """Each reading but the first is ten seconds after the one before, until ``rates`` are over."""
    told, left = backend.stats, iter([0, *rates])
    generated = 0

    def stats() -> BackendStats:
        nonlocal generated
        if rate := next(left, 0):
            clock.time += HISTORY_EVERY_S
            generated += int(rate * HISTORY_EVERY_S)
        return replace(told(), generation_tokens=generated)

    backend.stats = stats  # type: ignore[method-assign]


def test_a_deployment_is_in_the_feed(
    opened: Open, fleet: PageFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = opened("fleet")
    one.page.locator(".engine[data-state=ready]").nth(2).wait_for()
    assert one.texts(".feed .deployed") == []
    read = EngineReader.read
    was = version("pomona-serve")
    fleet.deploy(1, "fedcba9876543210")
    told = "mini-1engine-4 brings revision fedcba98 of demo instead of 01234567."
    one.shows(".feed .deployed span", [told])
    # Who has left is not missed.
    one.shows(".engine[data-state=left] .state", ["left"])
    one.shows(".pulse", ["Live"])
    one.shows(".feed .joined span", ["mini-1engine-4 serves demo."])
    before = [engine.backend for engine in fleet.engines]

    def read_later_version(self: EngineReader) -> EngineReading:
        told = read(self)
        return told if self.backend in before else told.model_copy(update={"version": "99.1"})

    monkeypatch.setattr(EngineReader, "read", read_later_version)
    fleet.deploy(2, "0123456789abcdef")
    told_next = f"mini-2engine-5 brings Pomona 99.1 instead of {was}."
    one.shows(".feed .deployed span", [told_next, told])
