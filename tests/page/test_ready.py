"""What is loaded and run until one can write: counted, since time tells of a machine as well."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import pytest

from deployments.gateway.page.routes import page_files
from tests.deployments.test_page_files import MOST_BYTES, MOST_REQUESTS
from tests.page.conftest import Open
from tests.support.page.page_fleet import PageFleet

if TYPE_CHECKING:
    from playwright.sync_api import Route

READY = {"chat": "#model option", "fleet": ".engine .load"}
MOST_ASKED = {"chat": 1, "fleet": 1}
"""Requests to the API."""
MOST_RUN_BYTES = 35_000
"""Of scripts: those of their functions that are called, and what stands outside of any."""
MOST_CALLS = 600
MOST_NODES = 150


@pytest.mark.parametrize("view", READY)
def test_the_budget_until_one_can_write(opened: Open, fleet: PageFleet, view: str) -> None:
    one = opened("connect")
    one.page.locator(".recipe").last.wait_for()
    protocol = one.page.context.new_cdp_session(one.page)
    sent: list[dict[str, Any]] = []
    received: list[float] = []
    protocol.on("Network.requestWillBeSent", lambda told: sent.append(told))
    protocol.on("Network.loadingFinished", lambda told: received.append(told["encodedDataLength"]))
    protocol.send("Network.enable")
    # As at a first visit.
    protocol.send("Network.setCacheDisabled", {"cacheDisabled": True})
    protocol.send("Profiler.enable")
    protocol.send("Profiler.startPreciseCoverage", {"callCount": True, "detailed": True})
    one.page.goto("about:blank")
    sent.clear()
    received.clear()
    one.page.goto(f"{one.url}/#/{view}")
    one.page.locator(READY[view]).first.wait_for(state="attached")
    scripts = [
        script
        for script in protocol.send("Profiler.takePreciseCoverage")["result"]
        if script["url"].startswith(f"{one.url}/page/")
    ]
    asked = [told["request"]["url"].removeprefix(one.url) for told in sent]
    assert len([path for path in asked if path.startswith("/v1/")]) <= MOST_ASKED[view]
    assert len(asked) <= MOST_REQUESTS + MOST_ASKED[view]
    assert sum(received) < MOST_BYTES
    # Nobody waits for a module to learn of the next one: the document names them all.
    late = [told for told in sent if told["initiator"]["type"] == "script"]
    assert [told["request"]["url"] for told in late if "/page/" in told["request"]["url"]] == []
    functions = [one for script in scripts for one in script["functions"]]
    assert 0 < sum(one["ranges"][0]["count"] for one in functions) <= MOST_CALLS
    assert 0 < sum(map(run_bytes, scripts)) <= MOST_RUN_BYTES
    assert one.page.locator("*").count() <= MOST_NODES


def run_bytes(script: Mapping[str, Any]) -> int:
    name = script["url"].rpartition("/")[2]
    ran = bytearray(len(page_files()[name].content.decode()))
    # What stands within another range comes after it.
    for function in script["functions"]:
        for part in function["ranges"]:
            begin, end = part["startOffset"], part["endOffset"]
            ran[begin:end] = bytes([part["count"] > 0]) * len(ran[begin:end])
    return sum(ran)


def test_one_can_write_before_any_engine_has_answered(opened: Open) -> None:
    held: list[Route] = []
    one = opened("connect")
    one.page.locator(".recipe").last.wait_for()
    one.page.route("**/v1/**", lambda route: held.append(route))
    one.page.goto("about:blank")
    one.page.goto(f"{one.url}/#/chat")
    one.page.locator("#message").wait_for()
    one.page.fill("#message", "Not answered yet")
    one.page.get_by_role("button", name="Light or dark").click()
    one.page.get_by_role("button", name="Settings").click()
    one.page.get_by_label("Temperature").fill("0.5")
    one.page.get_by_role("button", name="Done").click()
    assert one.page.input_value("#message") == "Not answered yet"
    assert len(held) == 1
    held[0].continue_()
    one.page.locator(READY["chat"]).wait_for(state="attached")
