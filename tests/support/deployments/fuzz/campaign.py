"""Inputs by the thousand, and which of them broke something."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from tests.support.deployments.fuzz.mutations import Input, Mutations
from tests.support.deployments.fuzz.target import HANGS, Target, target

AT_ONCE = 128
A_ROUND = 5000
"""Inputs, after which nothing may be left of a server."""
ALONE_S = 5.0
"""In which one that is sent alone is answered."""
MOST_TRIES = 100
"""At making an input smaller."""


@dataclass(frozen=True)
class Finding:
    inputs: Sequence[Input]
    """One that does it alone, as small as it gets; or those of a batch that do it together."""
    problem: str


async def campaign(
    mutations: Mutations, numbers: range, done: Callable[[int], object]
) -> list[Finding]:
    """``done`` hears how many more have been sent. Raises ``AssertionError`` if something is left
    of a server that has stopped."""
    findings = []
    for start in range(numbers.start, numbers.stop, A_ROUND):
        async with target() as one:
            inputs = map(mutations.input, range(start, min(start + A_ROUND, numbers.stop)))
            while batch := list(islice(inputs, AT_ONCE)):
                findings += await _send(one, batch)
                done(len(batch))
    return findings


async def _send(one: Target, batch: Sequence[Input]) -> list[Finding]:
    problems = await asyncio.gather(*map(one.send, batch))
    suspects = [sent for sent, problem in zip(batch, problems, strict=True) if problem]
    faults = one.faults()
    if not suspects and not faults:
        return []
    findings = [
        # Whoever waits for a hang each time would wait for long.
        Finding([sent if problem == HANGS else await _smaller(one, sent)], problem)
        for sent in suspects or batch
        if (problem := await _problem(one, sent))
    ]
    return findings or [Finding(batch, "; ".join([*faults, *filter(None, problems)]))]


async def _problem(one: Target, sent: Input) -> str | None:
    """What it does alone."""
    problem = await one.send(sent, ALONE_S)
    return "; ".join([*filter(None, [problem]), *one.faults()]) or None


async def _smaller(one: Target, sent: Input) -> Input:
    """Without the parts that it takes nothing to do without."""
    size, tries = len(sent.raw) // 2, 0
    while size:
        start = 0
        while start < len(sent.raw) and tries < MOST_TRIES:
            tries += 1
            without = replace(sent, raw=sent.raw[:start] + sent.raw[start + size :])
            if await _problem(one, without) not in (None, HANGS):
                sent = without
            else:
                start += size
        size //= 2
    return sent
