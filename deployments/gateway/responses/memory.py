"""The store: responses in memory, bounded by bytes, by bytes of each tenant, and by age.

An item that several responses have, such as the beginning of a conversation, is held once.
"""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from deployments.gateway.responses.store import (
    ResponseStore,
    StoredItem,
    StoredResponse,
    StoreStats,
)

ENTRY_BYTES = 1024
"""About what Python adds to a response."""
ITEM_BYTES = 512
"""To an item."""
REFERENCE_BYTES = 8


@dataclass
class _Item:
    item: StoredItem
    num_responses: int = 0

    @property
    def num_bytes(self) -> int:
        return len(self.item.json) + ITEM_BYTES


@dataclass
class _Entry:
    response: StoredResponse
    until: float
    items: tuple[_Item, ...]

    @property
    def num_bytes(self) -> int:
        return len(self.response.head) + ENTRY_BYTES + REFERENCE_BYTES * len(self.items)


@dataclass
class _Tenant:
    entries: OrderedDict[str, _Entry] = field(default_factory=OrderedDict)
    """By id, the least recently used first."""
    items: dict[str, _Item] = field(default_factory=dict)
    num_bytes: int = 0


class MemoryStore(ResponseStore):
    """Sizes in bytes, times in seconds. ``max_bytes_per_key`` bounds every tenant but the nameless
    one, which is alone: without keys all requests are its own."""

    def __init__(
        self,
        *,
        max_bytes: int,
        max_bytes_per_key: int,
        max_age_s: float,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        self._max_bytes = max_bytes
        self._max_bytes_per_key = min(max_bytes, max_bytes_per_key)
        self._max_age_s = max_age_s
        self._now = now
        self._tenants: dict[str, _Tenant] = {}
        self._used: OrderedDict[tuple[str, str], None] = OrderedDict()
        """Tenants and ids, the least recently used first."""
        self._put: OrderedDict[tuple[str, str], None] = OrderedDict()
        """The oldest first."""
        self._num_bytes = 0
        self._evicted = Counter[str]()

    async def put(self, tenant: str, response: StoredResponse) -> bool:
        self._expire()
        self._remove(tenant, response.id)
        most = self._max_bytes_per_key if tenant else self._max_bytes
        if _size(response) > most:
            return False
        self._add(tenant, response)
        while self._tenants[tenant].num_bytes > most:
            self._evict(tenant, next(iter(self._tenants[tenant].entries)), "key")
        while self._num_bytes > self._max_bytes:
            self._evict(*next(iter(self._used)), "memory")
        return True

    async def get(self, tenant: str, response_id: str) -> StoredResponse | None:
        self._expire()
        entry = self._find(tenant, response_id)
        if entry is None:
            return None
        self._tenants[tenant].entries.move_to_end(response_id)
        self._used.move_to_end((tenant, response_id))
        return entry.response

    async def items(self, tenant: str, item_ids: Sequence[str]) -> dict[str, bytes]:
        self._expire()
        known: Mapping[str, _Item] = self._tenants[tenant].items if tenant in self._tenants else {}
        return {one: known[one].item.json for one in item_ids if one in known}

    async def delete(self, tenant: str, response_id: str) -> bool:
        self._expire()
        return self._remove(tenant, response_id)

    async def stats(self) -> StoreStats:
        self._expire()
        return StoreStats(len(self._used), self._num_bytes, dict(self._evicted))

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` where the accounts don't add up."""
        for tenant in self._tenants.values():
            held = Counter(id(one) for entry in tenant.entries.values() for one in entry.items)
            items = {id(one): one for entry in tenant.entries.values() for one in entry.items}
            assert all(one.num_responses == held[key] for key, one in items.items())
            assert all(id(one) in items for one in tenant.items.values())
            entries = sum(entry.num_bytes for entry in tenant.entries.values())
            assert tenant.num_bytes == entries + sum(one.num_bytes for one in items.values())
            assert tenant.entries
        assert self._num_bytes == sum(one.num_bytes for one in self._tenants.values())
        keys = {(name, one) for name, tenant in self._tenants.items() for one in tenant.entries}
        assert keys == set(self._used) == set(self._put)

    def _find(self, tenant: str, response_id: str) -> _Entry | None:
        known = self._tenants.get(tenant)
        return known.entries.get(response_id) if known else None

    def _add(self, name: str, response: StoredResponse) -> None:
        tenant = self._tenants.setdefault(name, _Tenant())
        items = tuple(_held(tenant, one) for one in response.items)
        shared, num_inputs = tuple(one.item for one in items), len(response.input)
        response = replace(response, input=shared[:num_inputs], output=shared[num_inputs:])
        entry = _Entry(response, self._now() + self._max_age_s, items)
        added = entry.num_bytes
        for one in items:
            added += 0 if one.num_responses else one.num_bytes
            one.num_responses += 1
        tenant.entries[response.id] = entry
        self._used[name, response.id] = self._put[name, response.id] = None
        self._count(tenant, added)

    def _remove(self, name: str, response_id: str) -> bool:
        entry = self._find(name, response_id)
        if entry is None:
            return False
        tenant = self._tenants[name]
        del tenant.entries[response_id], self._used[name, response_id], self._put[name, response_id]
        removed = entry.num_bytes
        for one in entry.items:
            one.num_responses -= 1
            if not one.num_responses:
                removed += one.num_bytes
                if tenant.items.get(one.item.id) is one:
                    del tenant.items[one.item.id]
        self._count(tenant, -removed)
        if not tenant.entries:
            del self._tenants[name]
        return True

    def _count(self, tenant: _Tenant, num_bytes: int) -> None:
        tenant.num_bytes += num_bytes
        self._num_bytes += num_bytes

    def _evict(self, tenant: str, response_id: str, reason: str) -> None:
        self._evicted[reason] += 1
        self._remove(tenant, response_id)

    def _expire(self) -> None:
        now = self._now()
        while self._put:
            tenant, response_id = next(iter(self._put))
            if self._tenants[tenant].entries[response_id].until > now:
                return
            self._evict(tenant, response_id, "age")


def _held(tenant: _Tenant, item: StoredItem) -> _Item:
    """What ``tenant`` has of an item; from now on, if it had none."""
    known = tenant.items.get(item.id)
    if known is None or known.item.json != item.json:
        known = tenant.items[item.id] = _Item(item)
    return known


def _size(response: StoredResponse) -> int:
    """Of one that shares nothing."""
    items = sum(len(one.json) + ITEM_BYTES + REFERENCE_BYTES for one in response.items)
    return len(response.head) + ENTRY_BYTES + items
