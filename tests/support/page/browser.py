"""Chromium, driven by Playwright: what it must never do."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NoReturn

import pytest

from ops.bench.page import browser

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

PATIENCE_MS = 60_000
ANOTHER = "another.test"
"""This machine, as if it were another one: no loopback name, which browsers trust without TLS."""
NO_FAULTS = ("Failed to load resource", "The Cross-Origin-Opener-Policy header has been ignored")
"""What a console says of a refused request, whatever the page makes of it, and of plain HTTP from
another machine."""


@contextmanager
def chromium() -> Iterator[Browser]:
    """Skips without Chromium or Playwright, unless this is continuous integration."""
    options = f"--host-resolver-rules=MAP {ANOTHER} 127.0.0.1"
    try:
        with pytest.MonkeyPatch.context() as patch:
            # Below it is a socket, whose path must be short.
            patch.setenv("TMPDIR", "/tmp")
            with browser.chromium(options) as started:
                yield started
    except browser.MissingBrowserError as error:
        skip_without(error)


def skip_without(error: browser.MissingBrowserError) -> NoReturn:
    if "CI" in os.environ:
        pytest.fail(str(error))
    pytest.skip(str(error))


class Watched:
    """A page, with all that it asked for and all that went wrong in it."""

    def __init__(self, page: Page, url: str) -> None:
        self.page = page
        self.url = url
        self.requests: list[str] = []
        self.faults: list[str] = []
        page.set_default_timeout(PATIENCE_MS)
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("console", self._heard)
        page.on("dialog", self._asked)

    def ask(self, text: str) -> None:
        """Write a message and send it."""
        self.page.fill("#message", text)
        self.page.keyboard.press("Enter")

    def answered(self, text: str) -> None:
        """Returns once the latest answer is whole, and has ``text`` in it."""
        latest = self.page.locator(".message.assistant").last
        latest.locator("..").locator(".assistant:not(.running)").last.wait_for()
        latest.filter(has_text=text).wait_for()
        self.page.locator("#message").wait_for()

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_text_contents()

    def shows(self, selector: str, texts: list[str]) -> None:
        """Returns once these are the texts of all that ``selector`` finds."""
        from playwright.sync_api import expect

        expect(self.page.locator(selector)).to_have_text(texts, timeout=PATIENCE_MS)

    def _heard(self, message: Any) -> None:
        if message.type == "error" and not message.text.startswith(NO_FAULTS):
            self.faults.append(message.text)

    def _asked(self, dialog: Any) -> None:
        if dialog.type == "confirm":
            dialog.accept()
            return
        self.faults.append(f"{dialog.type}: {dialog.message}")
        dialog.dismiss()
