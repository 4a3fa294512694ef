"""What gateways ask of the store that they share, whichever process it lives in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True)
class StoredItem:
    """An item of an input or an output: equal ids of one tenant mean equal items."""

    id: str
    json: bytes


@dataclass(frozen=True)
class StoredResponse:
    id: str
    head: bytes
    """The JSON of the response object without its ``output``."""
    input: tuple[StoredItem, ...]
    """Those of the responses before it, then its own."""
    output: tuple[StoredItem, ...]

    @property
    def items(self) -> tuple[StoredItem, ...]:
        """What a response goes on with that names this one."""
        return self.input + self.output

    def json(self) -> bytes:
        """The response object."""
        output = b",".join(item.json for item in self.output)
        return self.head[:-1] + b',"output":[' + output + b"]}"


@dataclass(frozen=True)
class StoreStats:
    num_responses: int = 0
    num_bytes: int = 0
    num_evicted: Mapping[str, int] = field(default_factory=dict)
    """Since the store began, by why: ``age``, ``key`` (its own bound) or ``memory``."""


class StoreUnavailableError(Exception):
    """The store doesn't answer."""


class ResponseStore(Protocol):
    """A tenant finds what is its own, and nothing else. Each method raises
    ``StoreUnavailableError``."""

    async def put(self, tenant: str, response: StoredResponse) -> bool:
        """Replaces one with the same id. False: it is larger than what a tenant may have."""
        ...

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None: ...

    async def items(self, tenant: str, item_ids: Sequence[str]) -> Mapping[str, bytes]:
        """The JSON of those that are found, by id."""
        ...

    async def delete(self, tenant: str, response_id: str) -> bool:
        """Whether there was one. Items that other responses have, too, stay with those."""
        ...

    async def stats(self) -> StoreStats: ...
