"""A browser in which somebody signs up and sends a first message. It stays open until nobody reads
what this prints any more."""

import os
import shutil
import sys

from playwright.sync_api import sync_playwright

MESSAGE, ANSWER = sys.argv[1:]
PATIENCE_MS = 120_000

with sync_playwright() as playwright:
    browser = playwright.chromium.launch(
        executable_path=shutil.which("chromium"), args=["--no-sandbox"]
    )
    page = browser.new_page()
    page.set_default_timeout(PATIENCE_MS)
    page.goto(os.environ["OPEN_WEBUI_URL"])
    page.get_by_text("Get started").click()
    page.locator("input[autocomplete=name]").fill("Ada")
    page.locator("input[type=email]").fill("ada@example.org")
    page.locator("input[type=password]").first.fill("apples-ripen-in-autumn")
    page.locator("button[type=submit]").click()
    page.get_by_role("button", name="Okay, Let's Go!").click()
    page.locator("#chat-input").click()
    page.keyboard.type(MESSAGE)
    page.keyboard.press("Enter")
    page.get_by_text(ANSWER).first.wait_for()
    print("answered", flush=True)
    sys.stdin.read()
    browser.close()
