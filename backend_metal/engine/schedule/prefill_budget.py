"""How much of which prompt a step computes.

Between tenants the budget is shared max-min, by their weights. Of a tenant's groups, each of which
is an HTTP request, the one that wants least goes first, and of equals the oldest: so a short prompt
waits for no long one, and prompts of one size are computed one after another. The oldest gets a
piece in any case, lest it starve while shorter ones keep coming.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import groupby

from backend_metal.engine.schedule.sequence import Sequence

MOST_PIECES = 8
"""A budget is cut into no more: every chunk reads all of its sequence's cache, however short."""

Tokens = dict[Sequence, int]
"""Oldest first."""


def divide(budget: int, wanted: Mapping[Sequence, int]) -> Tokens:
    """What each sequence gets of the tokens that it wants: all of them, as long as there are some
    left by those with a lower priority number."""
    ranked = {item: wanted[item] for item in sorted(wanted, key=lambda item: item.order)}
    if sum(ranked.values()) <= budget:
        return ranked
    given: Tokens = {}
    for _, equals in groupby(ranked, key=lambda item: item.priority):
        parts = _between_tenants(budget, {item: ranked[item] for item in equals})
        given |= parts
        budget -= sum(parts.values())
    return {item: given[item] for item in ranked}


def _between_tenants(budget: int, wanted: Tokens) -> Tokens:
    tenants = _grouped(wanted, lambda item: item.tenant)
    weights = [next(iter(tenant)).weight for tenant in tenants]
    parts = _parts(budget, tenants, weights, least=_piece(budget))
    given: Tokens = {}
    for part, tenant in zip(parts, tenants, strict=True):
        given |= _between_groups(part, tenant)
    return given


def _between_groups(budget: int, wanted: Tokens) -> Tokens:
    groups = _grouped(wanted, lambda item: item.group)
    parts = _parts(budget, groups, [1.0] * len(groups), least=budget)
    given: Tokens = {}
    for part, group in zip(parts, groups, strict=True):
        for item, count in group.items():
            given[item] = min(part, count)
            part -= given[item]
    return given


def _grouped(wanted: Tokens, name: Callable[[Sequence], str]) -> list[Tokens]:
    """By whose oldest sequence is the oldest."""
    groups: dict[str, Tokens] = {}
    for item, count in wanted.items():
        groups.setdefault(name(item), {})[item] = count
    return [*groups.values()]


def _piece(budget: int) -> int:
    return min(budget, max(1, budget // MOST_PIECES))


def _parts(budget: int, parties: list[Tokens], weights: list[float], *, least: int) -> list[int]:
    """What each of the parties gets, the oldest of which comes first: an equal part for its weight,
    but not less than ``least`` as long as there is any. What one does not want others have."""
    wanted = [sum(party.values()) for party in parties]
    parts = [0] * len(parties)
    kept = min(_piece(budget), wanted[0])
    remaining = sorted(range(len(parties)), key=lambda party: wanted[party] / weights[party])
    while remaining:
        share = weights[remaining[0]] / sum(weights[party] for party in remaining)
        party = remaining.pop(0)
        kept = kept if party else 0
        parts[party] = min(wanted[party], max(int(share * budget), least), budget - kept)
        budget -= parts[party]
    return parts
