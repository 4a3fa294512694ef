"""Pictures of the page for the README: ``python -m tests.support.page.screenshots`` writes them."""

from __future__ import annotations

import sys
import threading
from pathlib import Path
from unittest.mock import patch

import httpx

from deployments.gateway.watch import watched
from tests.support.page.browser import Watched, chromium
from tests.support.page.page_fleet import MODEL, PageFleet, page_fleet

FOLDER = Path(__file__).resolve().parents[3] / "deployments" / "gateway" / "page" / "images"
SIZE = {"width": 1180, "height": 830}
QUESTION = "How does a prefix cache help?"
ANSWER = """A **prefix cache** keeps the keys and values of prompts that were computed before, \
block by block. When the next prompt begins with the same tokens, those blocks are *found*, not \
computed.

| prompt | cached | blocks to compute |
| --- | ---: | ---: |
| the first one | 0 | 768 |
| the same again | 767 | 1 |

```python
def longest_prefix(pool: BlockPool, tokens: list[int]) -> list[int]:
    \"\"\"Blocks that hold the beginning of `tokens`.\"\"\"
    found = []
    for block_hash in hashes_of(tokens, size=16):
        block = pool.find(block_hash)  # None: nobody had it
        if block is None:
            break
        found.append(block)
    return found
```

What is found is shared: $n$ sequences with one prompt hold its blocks once.
"""
NUM_STREAMS = 13
NEXT_REVISION = "c41f7e902b6d58a3"
WATCHED_MS = 5000


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    with page_fleet(3) as fleet, chromium() as browser:
        for number, theme in enumerate(("light", "dark")):
            context = browser.new_context(
                viewport=SIZE, color_scheme=theme, reduced_motion="reduce"
            )  # type: ignore[arg-type]
            one = Watched(context.new_page(), fleet.url)
            one.page.goto(f"{fleet.url}/")
            _chat(one, fleet)
            one.page.screenshot(path=FOLDER / f"chat-{theme}.png")
            one.page.goto(f"{fleet.url}/#/fleet")
            one.page.locator(".engine[data-state=ready]").nth(2).wait_for()
            if not number:
                fleet.deploy(1, NEXT_REVISION)
            # Without those that left.
            with _Busy(fleet), patch.object(watched, "SHOWN_S", 0.0):
                one.page.wait_for_timeout(WATCHED_MS)
                one.page.screenshot(path=FOLDER / f"fleet-{theme}.png")
            context.close()
    return 0


def _chat(one: Watched, fleet: PageFleet) -> None:
    for engine in fleet.engines:
        engine.backend.pause_s = 0.015
    fleet.says(ANSWER)
    one.ask(QUESTION)
    one.answered("hold its blocks once")


class _Busy:
    """Streams of all lengths, for as long as the block runs."""

    def __init__(self, fleet: PageFleet) -> None:
        self._fleet = fleet
        self._threads: list[threading.Thread] = []

    def __enter__(self) -> None:
        self._fleet.says(lambda question: "word " * 40 * int(question.split()[-1]))
        for number in range(NUM_STREAMS):
            thread = threading.Thread(target=self._ask, args=(number,))
            thread.start()
            self._threads.append(thread)

    def __exit__(self, *error: object) -> None:
        for engine in self._fleet.engines:
            engine.backend.pause_s = 0.0
        for thread in self._threads:
            thread.join()

    def _ask(self, number: int) -> None:
        messages = [{"role": "user", "content": f"Write for as long as {15 + 3 * (number % 7)}"}]
        url = f"{self._fleet.url}/v1/chat/completions"
        httpx.post(url, json={"model": MODEL, "messages": messages}, timeout=120).raise_for_status()


if __name__ == "__main__":
    sys.exit(main())
