"""The prefix index: which replica was sent a prefix, and so has probably cached it."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable

MAX_HOLDERS = 8


class PrefixIndex:
    """Keys to replica ids, the least recently used key forgotten first."""

    def __init__(self, max_keys: int) -> None:
        self._max_keys = max_keys
        self._holders: OrderedDict[int, tuple[str, ...]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._holders)

    def holders(self, key: int) -> tuple[str, ...]:
        """Latest first."""
        return self._holders.get(key, ())

    def add(self, keys: Iterable[int], replica_id: str) -> None:
        for key in keys:
            holders = self._holders.get(key, ())
            if not holders or holders[0] != replica_id:
                others = (holder for holder in holders if holder != replica_id)
                self._holders[key] = (replica_id, *others)[:MAX_HOLDERS]
            self._holders.move_to_end(key)
        while len(self._holders) > self._max_keys:
            self._holders.popitem(last=False)
