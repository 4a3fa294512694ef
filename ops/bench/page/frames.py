"""What a browser does while something happens in a page: frames, and tasks that delay them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ops.bench.timing import quantile_of

if TYPE_CHECKING:
    from playwright.sync_api import Page

RECORDER = """(() => {
  const recorder = { frames: [], tasks: [], last: null };
  const step = (now) => {
    if (recorder.last !== null) recorder.frames.push(now - recorder.last);
    recorder.last = now;
    requestAnimationFrame(step);
  };
  requestAnimationFrame(step);
  new PerformanceObserver((list) => {
    for (const one of list.getEntries()) recorder.tasks.push(one.duration);
  }).observe({ type: "longtask", buffered: true });
  recorder.begin = () => Object.assign(recorder, { frames: [], tasks: [], last: null });
  window.recorder = recorder;
})()"""
"""To run before anything else of the page does. A task that takes 50 ms is a long one."""


@dataclass(frozen=True)
class Frames:
    """From one frame to the next, in milliseconds; the browser wants one every 16.7 ms."""

    times_ms: list[float]
    long_tasks_ms: list[float]
    num_nodes: int
    """Of the document, in the end."""

    def quantile(self, quantile: float) -> float:
        return quantile_of(self.times_ms, quantile)

    @property
    def longest(self) -> float:
        return max(self.times_ms)


def begin(page: Page) -> None:
    page.evaluate("recorder.begin()")


def end(page: Page) -> Frames:
    """Since ``begin``."""
    told: dict[str, Any] = page.evaluate(
        "({ ...recorder, begin: null, nodes: document.getElementsByTagName('*').length })"
    )
    return Frames(told["frames"], told["tasks"], told["nodes"])
