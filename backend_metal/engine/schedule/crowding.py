"""No tenant slows all others down to half of their speed.

A place that nobody else asks for is not free: whoever takes it makes everybody's step longer, by
how much depends on the machine. So while others run, a tenant with more sequences than any of them
may have as many as take ``PART`` of the time of all else that is in a step: its base, which any
batch takes, and the others' sequences. On a device that runs thirty sequences as fast as one,
nearly all of a step is its base, and this bounds nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from math import ceil, inf

from backend_metal.engine.schedule.sequence import Sequence

PART = 0.5
"""Its prompts, and what preemptions recompute, take their time, too."""
SLACK = 1.25
"""Whoever has so many times its part goes back to it: without some slack, each request of others
that ends and is followed by another would preempt somebody."""

STEPS_TILL_ALONE = 64
"""Others who leave mostly come back with their next request: whoever is left grows by one sequence
a step at first, lest many be preempted again."""


def most_places(sequence: Sequence, running: Iterable[Sequence], base: float) -> float:
    """Of the sequence's tenant, at least 1. ``base``: of a step, in sequences that take as long."""
    levels: defaultdict[str, float] = defaultdict(float)
    num_others, weights = 0, 0.0
    for other in running:
        if other.tenant != sequence.tenant and other.priority <= sequence.priority:
            levels[other.tenant] += 1 / other.weight
            num_others += 1
            weights += other.weight
    if not num_others:
        return inf
    as_others = max(levels.values()) * sequence.weight
    part = PART * (base + num_others) * sequence.weight * num_others / weights
    return max(1.0, as_others, part)


def surplus(sequence: Sequence, running: Iterable[Sequence], base: float) -> int:
    """How many of the sequence's tenant are to go, if any."""
    running = list(running)
    count = sum(other.tenant == sequence.tenant for other in running)
    most = most_places(sequence, running, base)
    return ceil(count - most) if count > SLACK * most else 0
