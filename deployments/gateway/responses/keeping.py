"""A response is written to the store once, right before its client gets the end of it, so that the
answer says whether it is kept. No token waits for that."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

from deployments.gateway.responses.accepting import Accepted
from deployments.gateway.responses.shared import SharedStore
from deployments.gateway.responses.store import StoredItem, StoredResponse
from deployments.protocol.parsing import off_the_loop
from deployments.protocol.responses.items import HostedItem, ItemReference
from deployments.protocol.responses.request import ResponsesRequest
from deployments.protocol.responses.stored_items import stored_item

_LAST = re.compile(rb"event: response\.(?:completed|incomplete)\ndata: ([^\n]*)")


@dataclass(frozen=True)
class ResponseKeeper:
    """Of one request whose response is to be kept."""

    store: SharedStore
    tenant: str
    accepted: Accepted
    answer_id: str

    async def kept(self, response: bytes) -> bytes:
        """The response object, which says what became of it."""
        whole = await off_the_loop(len(response), partial(json.loads, response), tenant=self.tenant)
        if await self._is_kept(whole, len(response)):
            return response
        return _encoded(whole | {"store": False})

    async def kept_end(self, events: bytes) -> bytes:
        """A client that comes back may have all but the end of the stream: that has no response."""
        last = _LAST.search(events)
        if last is None:
            return events
        event = await off_the_loop(len(events), partial(json.loads, last[1]), tenant=self.tenant)
        if await self._is_kept(event["response"], len(events)):
            return events
        told = _encoded(event | {"response": event["response"] | {"store": False}})
        return events[: last.start(1)] + told + events[last.end(1) :]

    async def _is_kept(self, response: dict[str, Any], num_bytes: int) -> bool:
        stored = await off_the_loop(num_bytes, partial(self._stored, response), tenant=self.tenant)
        return await self.store.put(self.tenant, stored)

    def _stored(self, response: dict[str, Any]) -> StoredResponse:
        head = {name: value for name, value in response.items() if name != "output"}
        return StoredResponse(
            response["id"],
            _encoded(head),
            self.accepted.before + tuple(self._input()),
            tuple(StoredItem(item["id"], _encoded(item)) for item in response["output"]),
        )

    def _input(self) -> Iterator[StoredItem]:
        asked = self.accepted.parsed.asked
        assert isinstance(asked, ResponsesRequest)
        for index, item in enumerate(asked.input):
            if isinstance(item, ItemReference):
                yield StoredItem(item.id, self.accepted.named[item.id])
            elif not isinstance(item, HostedItem):
                told = stored_item(item, self.answer_id, index)
                yield StoredItem(told["id"], _encoded(told))


def keeper_of(
    accepted: Accepted, tenant: str, answer_id: str, store: SharedStore | None
) -> ResponseKeeper | None:
    """None: nothing of it is kept."""
    asked = accepted.parsed.asked
    if store is None or not isinstance(asked, ResponsesRequest) or asked.store is False:
        return None
    return ResponseKeeper(store, tenant, accepted, answer_id)


def _encoded(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
