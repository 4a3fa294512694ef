"""Cancellation: work that ends when its client disconnects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.types import Receive

T = TypeVar("T")


async def run_until_disconnect(
    receive: Receive, work: Coroutine[Any, Any, None], *, is_sent: Callable[[], bool]
) -> bool:
    """Run ``work`` to its end, or cancel it at ``http.disconnect``: then False. Once it returns or
    raises, ``work`` has ended. ``receive`` must have given the whole body already; raises what it
    raises.

    ``is_sent``: whether the whole response has been sent. Servers tell of a disconnect then, too,
    and ``work`` may still have to tidy up.
    """
    until_gone = asyncio.timeout(None)
    now = asyncio.get_running_loop().time

    async def watch() -> None:
        try:
            while (await receive())["type"] != "http.disconnect":
                pass
        except Exception:
            until_gone.reschedule(now())
            raise
        if not is_sent():
            until_gone.reschedule(now())

    watcher = asyncio.create_task(watch())
    try:
        # In this task: a new one would begin a turn later, and a busy event loop's turns are long.
        async with until_gone:
            await work
    except TimeoutError:
        if not until_gone.expired():
            raise
        await watcher
        return False
    finally:
        watcher.cancel()
    return True


async def unless_disconnected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of ``work``, before a response begins. Raises ``ClientDisconnect`` in its place,
    once ``work`` has ended."""
    results: list[T] = []

    async def collect() -> None:
        results.append(await work)

    if not await run_until_disconnect(receive, collect(), is_sent=lambda: False):
        raise ClientDisconnect
    return results[0]
