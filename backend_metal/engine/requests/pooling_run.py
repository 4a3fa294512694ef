"""One pooling request on its way through the engine: a few of its inputs at a time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable

from deployments.backend import BackendError, Pooled, PoolingInput, PoolingRequest, Prefill

Item = Pooled | Prefill | Exception


class PoolingRun:
    """However many inputs there are, no more than ``most_at_once`` are tokenized and unread.
    Belongs to one event loop."""

    def __init__(
        self,
        request: PoolingRequest,
        *,
        most_at_once: int,
        encode: Callable[[PoolingInput], Awaitable[list[int]]],
        add: Callable[[int, list[int]], None],
    ) -> None:
        """``encode`` makes tokens of an input; ``add`` gives them to the engine, which answers with
        ``put``."""
        self._request = request
        self._places = asyncio.Semaphore(most_at_once)
        self._encode = encode
        self._add = add
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self.unread: set[int] = set()
        """Inputs that the engine was given and whose results nobody has read."""

    def put(self, index: int, item: Pooled | Prefill | BackendError) -> None:
        """What the engine has made of an input."""
        if not isinstance(item, BackendError):
            self._request.on_made(index, item)
        self._items.put_nowait(item)

    async def items(self) -> AsyncGenerator[Pooled | Prefill, None]:
        """Until there is one ``Pooled`` for each input. Raises a ``BackendError``."""
        feeding = asyncio.create_task(self._feed())
        feeding.add_done_callback(self._fed)
        num_left = len(self._request.inputs)
        try:
            while num_left:
                item = await self._items.get()
                if isinstance(item, Exception):
                    raise item
                if isinstance(item, Pooled):
                    num_left -= 1
                    self.unread.remove(item.index)
                    self._places.release()
                yield item
        finally:
            feeding.cancel()

    async def _feed(self) -> None:
        for index, one in enumerate(self._request.inputs):
            await self._places.acquire()
            token_ids = await self._encode(one)
            self.unread.add(index)
            self._add(index, token_ids)

    def _fed(self, feeding: asyncio.Task[None]) -> None:
        if not feeding.cancelled() and (error := feeding.exception()):
            assert isinstance(error, Exception)
            self._items.put_nowait(error)
