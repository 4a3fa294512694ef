"""Who waits, who runs, and who has more of the batch than others.

Places in the batch are shared max-min (Bertsekas & Gallager, Data Networks, 6.5.2): between tenants
by their weights, then between a tenant's groups, each of which is an HTTP request. A tenant's level
is the number of its running sequences over its weight. A free place goes to the lowest level, and
a running sequence gives its place up if its tenant is above the other's level even without it: so
each exchange makes the levels more even, none is ever undone by another, and every tenant has a
place before any has a second one.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from backend_metal.engine.schedule.sequence import Order, Sequence

NONE_OF_IT = 2
"""How often a tenant was refused of which no sequence is to be next."""


@dataclass
class _Group:
    num_running: int = 0
    waiting: list[tuple[Order, Sequence]] = field(default_factory=list)
    """A heap."""


@dataclass
class _Tenant:
    weight: float = 1.0
    """As its latest request had it."""
    num_running: int = 0
    groups: dict[str, _Group] = field(default_factory=dict)

    @property
    def level(self) -> float:
        return self.num_running / self.weight


class Shares:
    def __init__(self) -> None:
        self._tenants: dict[str, _Tenant] = {}
        """Those that have a sequence here, with the groups that have one."""
        self.num_changes = 0
        """So far, in who waits and who runs: without one, whoever had no place has none."""

    @property
    def has_any(self) -> bool:
        return bool(self._tenants)

    @property
    def has_several_tenants(self) -> bool:
        return len(self._tenants) > 1

    @property
    def waiting(self) -> list[Sequence]:
        tenants = self._tenants.values()
        groups = [group for tenant in tenants for group in tenant.groups.values()]
        return [sequence for group in groups for _, sequence in group.waiting]

    def add_waiting(self, sequence: Sequence) -> None:
        tenant = self._tenants.setdefault(sequence.tenant, _Tenant())
        tenant.weight = sequence.weight
        group = tenant.groups.setdefault(sequence.group, _Group())
        heapq.heappush(group.waiting, (sequence.order, sequence))
        self.num_changes += 1

    def start(self, sequence: Sequence) -> None:
        """It waited, and runs now."""
        tenant, group = self._of(sequence)
        tenant.num_running += 1
        group.num_running += 1
        self.remove_waiting(sequence)

    def remove_waiting(self, sequence: Sequence) -> None:
        _, group = self._of(sequence)
        if group.waiting[0][1] is sequence:
            heapq.heappop(group.waiting)
        else:
            group.waiting.remove((sequence.order, sequence))
            heapq.heapify(group.waiting)
        self._removed(sequence)

    def remove_running(self, sequence: Sequence) -> None:
        tenant, group = self._of(sequence)
        tenant.num_running -= 1
        group.num_running -= 1
        self._removed(sequence)

    def next_waiting(self, refused: Mapping[str, int]) -> Sequence | None:
        """Of the lowest priority number, whoever has least; the first of several.

        ``refused``: how often a step had no tokens for one of a tenant's. Then its shortest one is
        next, and after that none.
        """
        return next(iter(self._next_of_tenants(refused)), None)

    def next_exchange(
        self, running: list[Sequence], refused: Mapping[str, int]
    ) -> tuple[Sequence, Sequence] | None:
        """A waiting sequence, and a running one whose place is due to it, if there are such."""
        for number, sequence in enumerate(self._next_of_tenants(refused)):
            # Where the lowest level is due no place of another tenant, no higher one is.
            if number and self._tenants[sequence.tenant].num_running < 2:
                continue
            if above := [item for item in running if self._is_above(item, sequence)]:
                return sequence, self.first_to_go(above)
        return None

    def first_to_go(self, running: Iterable[Sequence]) -> Sequence:
        """Of the highest priority number, whoever has most; the last of several."""
        return max(running, key=self._rank)

    def _next_of_tenants(self, refused: Mapping[str, int]) -> list[Sequence]:
        """One of each tenant that has any of the lowest priority number; the lowest level first."""
        ranked = []
        for name, tenant in self._tenants.items():
            times = refused.get(name, 0)
            waiting = [
                (order[0], sequence.num_tokens if times else group.num_running, order, sequence)
                for group in tenant.groups.values()
                for order, sequence in group.waiting[:1]
            ]
            if waiting and times < NONE_OF_IT:
                priority, _, order, sequence = min(waiting)
                ranked.append((priority, tenant.level, order, sequence))
        ranked.sort()
        return [sequence for priority, _, _, sequence in ranked if priority == ranked[0][0]]

    def _is_above(self, running: Sequence, sequence: Sequence) -> bool:
        if running.priority < sequence.priority:
            return False
        tenant, group = self._of(running)
        other_tenant, other_group = self._of(sequence)
        if tenant is not other_tenant:
            return (tenant.num_running - 1) / tenant.weight > other_tenant.level
        return group.num_running - 1 > other_group.num_running

    def _rank(self, sequence: Sequence) -> tuple[int, float, int, Order]:
        tenant, group = self._of(sequence)
        return (sequence.priority, tenant.level, group.num_running, sequence.order)

    def _of(self, sequence: Sequence) -> tuple[_Tenant, _Group]:
        tenant = self._tenants[sequence.tenant]
        return tenant, tenant.groups[sequence.group]

    def _removed(self, sequence: Sequence) -> None:
        self.num_changes += 1
        tenant, group = self._of(sequence)
        if not group.num_running and not group.waiting:
            del tenant.groups[sequence.group]
        if not tenant.groups:
            del self._tenants[sequence.tenant]

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Raises ``AssertionError`` unless ``running`` are those that run."""
        groups = Counter((sequence.tenant, sequence.group) for sequence in running)
        for name, tenant in self._tenants.items():
            counts = [group.num_running for group in tenant.groups.values()]
            assert tenant.num_running == sum(counts), f"{name!r} runs {counts}"
            for group_name, group in tenant.groups.items():
                assert group.num_running == groups.pop((name, group_name), 0)
                assert group.num_running or group.waiting, f"{group_name!r} is gone"
                for order, sequence in group.waiting:
                    assert (order, sequence.tenant) == (sequence.order, name)
                    assert sequence.group == group_name
        assert not groups, f"{groups} are not counted"
