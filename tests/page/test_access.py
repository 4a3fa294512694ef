"""Who may use the page, and who can: keys, keyboards, screen readers, phones."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Any

import pytest

from tests.page.conftest import Open
from tests.support.page.browser import ANOTHER, Watched
from tests.support.page.page_fleet import PageFleet, page_fleet

KEY = "a-good-key"
VIEWS = {"chat": ".message.assistant", "fleet": ".engine .load", "connect": ".recipe pre"}
SERIOUS = ("serious", "critical")
ANSWER = """# Title

Text with [a link](https://example.org/) and `code`.

```js
let a = 'b'; // c
```

| a | b |
|---|---|
| 1 | 2 |
"""
WIDEST = """() => {
  const main = document.querySelector("main");
  return Math.max(document.documentElement.scrollWidth, main.scrollWidth);
}"""
FOCUSED = """() => {
  const one = document.activeElement;
  return (one.getAttribute("aria-label") || one.textContent).trim();
}"""
THEME = "document.documentElement.dataset.theme"
ORDER = ["Chat", "Fleet", "Connect", "Light or dark", "New chat", "Message", "Settings", "Send"]


@pytest.fixture(scope="module")
def locked_fleet() -> Iterator[PageFleet]:
    with page_fleet(keys=[KEY]) as fleet:
        yield fleet


def test_a_key_is_asked_for_until_it_is_right(opened: Open, locked_fleet: PageFleet) -> None:
    one = opened(url=locked_fleet.url)
    dialog = one.page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Key", exact=True).fill("a-wrong-one")
    dialog.get_by_role("button", name="Use it").click()
    dialog.filter(has_text="The API key is wrong.").wait_for()
    dialog.get_by_label("Key", exact=True).fill(KEY)
    dialog.get_by_role("button", name="Use it").click()
    one.page.locator("#model option").wait_for(state="attached")
    one.ask("Hi")
    one.answered("You said: Hi")
    one.page.reload()
    one.answered("You said: Hi")
    one.page.goto(f"{one.url}/#/fleet")
    one.page.locator(VIEWS["fleet"]).wait_for()
    # It stays in this tab unless its user says otherwise, and in no address.
    assert one.page.evaluate("Object.values(localStorage).join()").count(KEY) == 0
    assert not [url for url in one.requests if KEY in url]
    one.page.goto(f"{one.url}/#/connect")
    assert KEY not in one.page.locator(".recipes").inner_text()
    one.page.get_by_label("Put my key into the lines").check()
    assert KEY in one.page.locator(".recipe").first.inner_text()


def test_plain_http_from_another_machine_will_do(opened: Open, locked_fleet: PageFleet) -> None:
    """Browsers keep some of what they can from a page that came so."""
    one = opened(url=locked_fleet.url.replace("127.0.0.1", ANOTHER))
    assert not one.page.evaluate("isSecureContext")
    dialog = one.page.get_by_role("dialog", name="API key")
    dialog.get_by_label("Key", exact=True).fill(KEY)
    dialog.get_by_role("button", name="Use it").click()
    one.page.locator("#model option").wait_for(state="attached")
    one.ask("Hi")
    one.answered("You said: Hi")
    one.page.reload()
    one.answered("You said: Hi")
    one.page.get_by_role("button", name="Copy answer").click()
    one.page.locator("#said", has_text="Copied").wait_for(state="attached")
    one.page.locator("#message").press("Control+V")
    assert one.page.locator("#message").input_value() == "You said: Hi"


def test_it_may_lie_beneath_a_path_of_a_proxy(opened: Open, fleet: PageFleet) -> None:
    one = opened(url=fleet.url)
    one.page.goto("about:blank")
    # A proxy that takes the path away, and that the page knows nothing of.
    one.page.context.route(
        f"{fleet.url}/models/**",
        lambda route: route.continue_(url=route.request.url.replace("/models/", "/", 1)),
    )
    one.requests.clear()
    one.url = f"{fleet.url}/models"
    one.page.goto(f"{one.url}/")
    one.page.locator("#model option").wait_for(state="attached")
    one.ask("Hi")
    one.answered("You said: Hi")
    one.page.goto(f"{one.url}/#/fleet")
    one.page.locator(VIEWS["fleet"]).wait_for()
    one.page.goto(f"{one.url}/#/connect")
    lines = one.page.locator(".recipe", has_text="curl").locator("pre")
    lines.filter(has_text=f"{one.url}/v1/chat/completions").wait_for()


def test_who_has_no_key_is_told_so(opened: Open, locked_fleet: PageFleet) -> None:
    one = opened(url=locked_fleet.url)
    one.page.get_by_role("dialog", name="API key").get_by_role("button", name="Cancel").click()
    one.page.get_by_role("alert").filter(has_text="wants an API key").wait_for()


def open_with_something_in_it(opened: Open, fleet: PageFleet, **options: Any) -> Watched:
    one = opened(**options)
    fleet.says(ANSWER)
    one.ask("Show me")
    one.answered("Title")
    return one


def test_axe_finds_no_serious_fault(opened: Open, fleet: PageFleet) -> None:
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    one = open_with_something_in_it(opened, fleet)
    for theme in ("light", "dark"):
        one.page.emulate_media(color_scheme=theme)
        one.page.reload()
        assert one.page.evaluate(THEME) == theme
        for view, there in VIEWS.items():
            one.page.goto(f"{one.url}/#/{view}")
            one.page.locator(there).first.wait_for()
            found = axe.run(one.page).response["violations"]
            serious = [
                (fault["id"], [node["html"][:200] for node in fault["nodes"]])
                for fault in found
                if fault["impact"] in SERIOUS
            ]
            assert serious == []


def test_a_phone_has_all_of_it_without_scrolling_sideways(opened: Open, fleet: PageFleet) -> None:
    size = {"width": 390, "height": 780}
    one = open_with_something_in_it(opened, fleet, viewport=size, has_touch=True)
    for width, (view, there) in product((390, 320), VIEWS.items()):
        one.page.set_viewport_size({"width": width, "height": 780})
        one.page.goto(f"{one.url}/#/{view}")
        one.page.locator(there).first.wait_for()
        widest = one.page.evaluate(WIDEST)
        assert widest <= width
    one.page.goto(f"{one.url}/#/chat")
    one.page.get_by_role("button", name="Conversations").click()
    one.page.get_by_role("button", name="New chat").click()
    one.page.get_by_role("heading", name="What would you like to know?").wait_for()
    for button in one.page.locator("main button:visible").all():
        box = button.bounding_box()
        assert box is not None
        assert min(box["width"], box["height"]) >= 24


def test_the_keyboard_alone_will_do(opened: Open, fleet: PageFleet) -> None:
    one = opened()
    one.page.locator("#model option").wait_for(state="attached")
    one.page.keyboard.press("Tab")
    assert one.page.locator(".skip").evaluate("one => one === document.activeElement")
    reached = []
    for _ in range(14):
        one.page.keyboard.press("Tab")
        reached.append(one.page.evaluate(FOCUSED))
    assert [name for name in reached if name in ORDER] == ORDER


def test_light_and_dark_are_kept(opened: Open) -> None:
    one = opened(color_scheme="dark")
    assert one.page.evaluate(THEME) == "dark"
    one.page.get_by_role("button", name="Light or dark").click()
    assert one.page.evaluate(THEME) == "light"
    one.page.reload()
    one.page.locator("#model option").wait_for(state="attached")
    assert one.page.evaluate(THEME) == "light"


def test_opening_it_takes_few_requests_and_bytes(opened: Open) -> None:
    one = opened()
    one.page.locator("#model option").wait_for(state="attached")
    one.page.wait_for_load_state("networkidle")
    assert len(one.requests) <= 32
    bytes_read = one.page.evaluate(
        "performance.getEntries().reduce((sum, one) => sum + (one.encodedBodySize ?? 0), 0)"
    )
    assert 0 < bytes_read < 150_000
