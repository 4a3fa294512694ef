"""Where in a sequence its recurrent state is worth a snapshot.

A snapshot is as large as thousands of tokens' keys and values, and says nothing of any other
position, so few are taken, each where another prompt is likely to leave this one: at the prompt's
end, before its last message, where prompts were seen to part, and now and then on the way. Of an
answer there is one, which is replaced as the answer grows.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class SnapshotPolicy:
    interval: int = 2048
    """Tokens between two snapshots of one long sequence."""
    least_gain: int = 64
    """Tokens behind a snapshot that are no more work than another one is worth."""
    answer_interval: int = 64
    """Tokens of an answer after which its latest snapshot is replaced: whoever is preempted or
    paused has so much to compute again, and a chat that goes on as much of its last answer."""


def snapshot_borders(
    start: int,
    stop: int,
    *,
    parting: Iterable[int],
    block_size: int,
    policy: SnapshotPolicy,
) -> list[int]:
    """Where to keep the state, between ``start``, where it is known, and ``stop``, the number of
    tokens: ascending borders of blocks.

    All lie before the newest token, since a prompt that is equal still has to run one.

    Args:
        parting: positions where other prompts part, or may be expected to. These come first, and
            of two close ones the lower: whatever shares more shares that.
    """

    def is_worth_it(border: int) -> bool:
        return all(abs(border - other) >= policy.least_gain for other in (start, *taken))

    last = _border(stop - 1, block_size)
    every = whole_blocks(policy.interval, block_size)
    on_the_way = range(_border(start, every) + every, last, every)
    taken: list[int] = []
    wished = [_border(position, block_size) for position in parting]
    for border in (*sorted(wished), last, *on_the_way):
        if start < border <= last and is_worth_it(border):
            taken.append(border)
    return sorted(taken)


def whole_blocks(interval: int, block_size: int) -> int:
    """The interval in whole blocks, at least one."""
    return _border(max(interval, block_size), block_size)


def _border(position: int, size: int) -> int:
    return position // size * size
