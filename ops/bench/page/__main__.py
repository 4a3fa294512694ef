"""How smooth the page is: until it is ready for a message, in a long conversation, in long answers.

``python -m ops.bench.page [--tokens N] [--messages N] [--tokens-per-second N] [--only KIND ...]``.
Chromium, which draws in software here, shares the processors with the gateway, an engine that only
writes, and whatever else runs.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ops.bench.page import frames
from ops.bench.page.browser import MissingBrowserError, chromium
from ops.bench.page.server import KINDS, MIXED, THOUGHTS, serve
from ops.bench.relay.servers import process
from ops.bench.timing import markdown_table

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext, Page

PATIENCE_MS = 600_000
SIZE = {"width": 1180, "height": 760}
READY = """new Promise((resolve) => {
  const look = () => {
    if (!document.querySelector("#model option")) return setTimeout(look, 1);
    requestIdleCallback(() => resolve(performance.now()));
  };
  look();
})"""
"""Milliseconds from the navigation until models can be asked and there is nothing left to do."""
LOADED = """(() => {
  const [document] = performance.getEntriesByType("navigation");
  const all = [document, ...performance.getEntriesByType("resource")];
  return [all.length, all.reduce((sum, one) => sum + one.transferSize, 0)];
})()"""
FILL = """async ([count, text]) => {
  const store = await import("/page/store.js");
  await store.conversation("none");
  const database = await new Promise((resolve) => {
    const asked = indexedDB.open("pomona");
    asked.onsuccess = () => resolve(asked.result);
  });
  const writing = database.transaction(["conversations", "messages"], "readwrite");
  const about = { id: "long", title: "Long", at: 1, leaf: `m${count - 1}` };
  writing.objectStore("conversations").put(about);
  for (let at = 0; at < count; at += 1) {
    writing.objectStore("messages").put({
      id: `m${at}`, conversation: "long", parent: at ? `m${at - 1}` : null, at,
      role: at % 2 ? "assistant" : "user", text: at % 2 ? text : `Question ${at}`,
    });
  }
  await new Promise((resolve) => (writing.oncomplete = resolve));
}"""
SCROLL = """async (numFrames) => {
  const log = document.querySelector(".log");
  for (let at = 0; at < numFrames; at += 1) {
    log.scrollTop -= 120;
    await new Promise(requestAnimationFrame);
  }
}"""
ANSWERED = """new Promise((resolve) => {
  const look = () => {
    const answer = document.querySelector(".assistant");
    if (!answer || answer.matches(".running")) return setTimeout(look, 200);
    resolve();
  };
  look();
})"""
NUM_OPENED = 5
NUM_SCROLLED = 600


class Bench:
    def __init__(self, browser: Browser, url: str) -> None:
        self._browser = browser
        self._url = url

    @contextmanager
    def page(self, **settings: object) -> Iterator[Page]:
        """Of a browser without a past but the page's ``settings``."""
        context = self._context(settings)
        page = context.new_page()
        page.set_default_timeout(PATIENCE_MS)
        page.goto(self._url)
        yield page
        context.close()

    def opened(self, times: int = NUM_OPENED) -> list[str]:
        """Requests, bytes and time of a first visit, and time of a second one: medians."""
        first, second = [], []
        for _ in range(times):
            with self.page() as page:
                first.append(page.evaluate(READY))
                num_requests, num_bytes = page.evaluate(LOADED)
                page.reload()
                second.append(page.evaluate(READY))
        ready_ms = [f"{statistics.median(taken):.0f}" for taken in (first, second)]
        return [str(num_requests), f"{num_bytes / 1000:.0f}", *ready_ms]

    def history(
        self, num_messages: int, num_frames: int = NUM_SCROLLED
    ) -> tuple[float, frames.Frames]:
        """Milliseconds until it is ready, then the frames while one scrolls up."""
        with self.page(conversation="long") as page:
            page.evaluate(FILL, [num_messages, MIXED])
            page.reload()
            page.locator(".message").last.wait_for()
            ready_ms = page.evaluate(READY)
            frames.begin(page)
            page.evaluate(SCROLL, num_frames)
            return ready_ms, frames.end(page)

    def answer(self, kind: str, num_tokens: int) -> frames.Frames:
        with self.page(model=kind, max_tokens=num_tokens) as page:
            page.locator("#model option").last.wait_for(state="attached")
            page.fill("#message", "Write")
            frames.begin(page)
            page.keyboard.press("Enter")
            if kind == THOUGHTS:
                # Unfolded.
                page.locator(".thinking summary").click()
            page.evaluate(ANSWERED)
            if notes := page.locator(".note:visible").all_text_contents():
                raise RuntimeError(notes[0])
            return frames.end(page)

    def _context(self, settings: object) -> BrowserContext:
        context = self._browser.new_context(viewport=SIZE)  # type: ignore[arg-type]
        context.add_init_script(frames.RECORDER)
        stored = json.dumps(json.dumps(settings))
        context.add_init_script(f"localStorage['pomona.settings'] ??= {stored}")
        return context


def report(rows: Sequence[tuple[str, frames.Frames]]) -> str:
    columns = ("", "p50, ms", "p99, ms", "longest, ms", "tasks over 50 ms", "elements")
    return markdown_table(columns, [(name, *_figures(one)) for name, one in rows])


def _figures(one: frames.Frames) -> tuple[str, ...]:
    times = (one.quantile(0.5), one.quantile(0.99), one.longest)
    return (*(f"{time:.0f}" for time in times), str(len(one.long_tasks_ms)), str(one.num_nodes))


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m ops.bench.page", description=__doc__)
    parser.add_argument("--tokens", type=int, default=20_000)
    parser.add_argument("--messages", type=int, default=10_000)
    parser.add_argument("--tokens-per-second", type=float, default=500.0)
    parser.add_argument("--only", choices=list(KINDS), action="append")
    arguments = parser.parse_args()
    try:
        with process(serve, arguments.tokens_per_second) as (url, _), chromium() as browser:
            _run(arguments, Bench(browser, url))
    except MissingBrowserError as error:
        sys.exit(str(error))


def _run(arguments: argparse.Namespace, bench: Bench) -> None:
    columns = ("requests", "kB", "ready after, ms", "the second time, ms")
    _say(markdown_table(columns, [bench.opened()]))
    ready_ms, scrolled = bench.history(arguments.messages)
    rows = [(f"{arguments.messages:,} messages, scrolling up", scrolled)]
    for kind in arguments.only or KINDS:
        rows.append((f"{arguments.tokens:,} tokens: {kind}", bench.answer(kind, arguments.tokens)))
    _say(report(rows))
    _say(f"With {arguments.messages:,} messages it is ready after {ready_ms:.0f} ms.")


def _say(text: str) -> None:
    sys.stdout.write(f"{text}\n\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
