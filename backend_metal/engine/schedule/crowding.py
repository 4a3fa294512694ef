"""No tenant slows all others down to half of their speed.

A place that nobody else asks for is not free: whoever takes it makes everybody's step longer, by
how much depends on the machine. So while others run, a tenant with more sequences than any of them,
and more than a quarter of the places, may have as many as keep a step within ``MOST_SLOWDOWN``
times what it takes with one of its sequences. On a device that runs thirty sequences as fast as one
this bounds nothing.

What a tenant may have in any case, as many as others or a quarter, it has by its requests: one that
asks for sixteen sequences does not weigh as much as sixteen requests of somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, inf

from backend_metal.engine.schedule.decode_times import DecodeTimes
from backend_metal.engine.schedule.sequence import Sequence

MOST_SLOWDOWN = 1.25
"""Its prompts, and what preemptions recompute, take their time, too."""
UNBOUNDED_PART = 0.25
"""Of all places: what an ordinary crowd has, whoever is beside it, with a request for each."""
SLACK = 1.25
"""Whoever has so many times its part goes back to it: without some slack, each request of others
that ends and is followed by another would preempt somebody."""

NEGLIGIBLE = 0.01
"""Smallest weight, of a sequence's own, with which another tenant limits its slots. A probe has
less: its one sequence already exceeds its share."""

STEPS_TILL_ALONE = 64
"""Others who leave mostly come back with their next request: whoever is left grows by one sequence
a step at first, lest many be preempted again."""


@dataclass
class _Other:
    weight: float
    count: int = 0
    """Of its running sequences."""
    groups: set[str] = field(default_factory=set)


def most_places(
    sequence: Sequence,
    running: Iterable[Sequence],
    num_places: int,
    times: DecodeTimes,
    wanted: float = inf,
) -> float:
    """Of the sequence's tenant, at least 1, as far as it matters: ``wanted`` or more is enough.
    ``num_places``: of all."""
    own_groups = {sequence.group}
    others: dict[str, _Other] = {}
    num_rest, num_others, weights = 0, 0, 0.0
    for one in running:
        if one.tenant == sequence.tenant:
            own_groups.add(one.group)
            continue
        num_rest += 1
        if one.priority <= sequence.priority and one.weight >= NEGLIGIBLE * sequence.weight:
            other = others.setdefault(one.tenant, _Other(one.weight))
            other.count += 1
            other.groups.add(one.group)
            num_others += 1
            weights += one.weight
    if not others:
        return inf
    as_others = sequence.weight * max(
        other.count / other.weight * min(1.0, len(own_groups) / len(other.groups))
        for other in others.values()
    )
    of_a_part = sequence.weight * num_others / weights
    unbounded = of_a_part * min(UNBOUNDED_PART * num_places, len(own_groups))
    most = max(1.0, as_others, unbounded)
    if most >= wanted:
        return most
    in_time = times.most_within(MOST_SLOWDOWN, num_rest + 1) - num_rest
    return max(most, of_a_part * in_time)


def surplus(
    sequence: Sequence, running: Iterable[Sequence], num_places: int, times: DecodeTimes
) -> int:
    """How many of the sequence's tenant are to go, if any."""
    running = list(running)
    count = sum(other.tenant == sequence.tenant for other in running)
    most = most_places(sequence, running, num_places, times, count / SLACK)
    return ceil(count - most) if count > SLACK * most else 0
