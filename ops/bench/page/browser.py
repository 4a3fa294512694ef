"""Chromium, as Debian and others package it: where it is, and what it is started with."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from playwright.sync_api import Browser

NAMES = ("chromium", "chromium-browser", "google-chrome")
OPTIONS = ("--no-sandbox", "--disable-dev-shm-usage", "--disable-gpu")
"""It draws in software: pages are no smoother anywhere than they are here."""


class MissingBrowserError(Exception):
    """Chromium or what drives it is not installed."""


@contextmanager
def chromium(*options: str) -> Iterator[Browser]:
    """Raises ``MissingBrowserError``."""
    path = next(filter(None, map(shutil.which, NAMES)), None)
    if path is None:
        raise MissingBrowserError("Chromium is not installed: apt-get install chromium")
    try:
        from playwright.sync_api import sync_playwright
    except ModuleNotFoundError as error:
        message = "Playwright is not installed: pip install playwright"
        raise MissingBrowserError(message) from error
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=[*OPTIONS, *options])
        yield browser
        browser.close()
