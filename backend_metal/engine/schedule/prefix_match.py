"""What a prompt may take from the prefix cache: blocks, and the state behind the last of them."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass

from backend_metal.engine.schedule.block_group import BlockGroup
from backend_metal.engine.schedule.sequence import Sequence
from backend_metal.engine.schedule.state_slots import StateSlots
from deployments.backend import PrefixMiss


@dataclass(frozen=True)
class PrefixMatch:
    num_blocks: int
    """Of the sequence's first blocks, those whose tokens need not be computed. A model with
    recurrent layers has a snapshot behind them."""
    blocks: tuple[list[int], ...]
    """By group, those of them that the tokens behind see."""
    num_known: int
    """Of the sequence's first blocks, those that are cached for layers that see all tokens. It may
    be more: of them, what other layers need is lost."""


def match_prefix(
    sequence: Sequence, groups: tuple[BlockGroup, ...], states: StateSlots | None
) -> PrefixMatch:
    """The longest beginning that need not be computed: a group that sees all tokens must have every
    block of it, one with a window those of the window at its end, and ``states`` a snapshot there.

    It ends short of the newest token, which is run in any case, since its logits are wanted; so a
    shared block is never written; and before any other whose logits are to be read.
    """
    block_size = groups[0].block_size
    most_tokens = sequence.num_tokens - 1
    if sequence.readings is not None and sequence.reads_prompt:
        most_tokens = sequence.readings.next_row
    hashes = sequence.block_hashes(block_size)[: most_tokens // block_size]
    windows = [group for group in groups if group.window is not None]
    whole = _first_cached(groups[0], hashes) if len(windows) < len(groups) else None
    num_known = end_of_windows(windows, hashes, len(hashes)) if whole is None else len(whole)
    num_blocks, end = num_known, -1
    while num_blocks != end:
        end = end_of_windows(windows, hashes, num_blocks)
        num_blocks = end if states is None else states.deepest(sequence, end)
    tails = [_tail(group, hashes, num_blocks) for group in windows]
    blocks = tails if whole is None else [whole[:num_blocks], *tails]
    return PrefixMatch(num_blocks, tuple(blocks), num_known)


def why_no_more(
    sequence: Sequence,
    match: PrefixMatch,
    groups: tuple[BlockGroup, ...],
    states: StateSlots | None,
) -> PrefixMiss | None:
    """Why no more of the prompt was reused; None: no more could be, or nobody may share it."""
    found, known, block_size = match.num_blocks, match.num_known, groups[0].block_size
    if found >= (sequence.num_prompt_tokens - 1) // block_size:
        return None
    if found < known:
        if states is None or states.deepest(sequence, known) > found:
            return "evicted"
        evicted = states.was_evicted(sequence, found, known)
        return "snapshot_evicted" if evicted else "no_snapshot"
    hashes = sequence.block_hashes(block_size)[: found + 1]
    if len(hashes) <= found:
        return None
    if groups[0].pool.was_evicted(hashes[-1]):
        return "evicted"
    return "diverged" if found else "new"


def end_of_windows(windows: Several[BlockGroup], hashes: Several[bytes], most: int) -> int:
    """The most of the first blocks, up to ``most``, behind which each group has its window."""
    end = most
    while True:
        missing = [one for group in windows if (one := group.last_missing(hashes, end)) is not None]
        if not missing:
            return end
        # Whatever ends behind a missing block, and not a window behind it, needs it.
        end = min(missing)


def _first_cached(group: BlockGroup, hashes: Several[bytes]) -> list[int]:
    blocks = []
    for content_hash in hashes:
        block = group.pool.find(content_hash)
        if block is None:
            break
        blocks.append(block)
    return blocks


def _tail(group: BlockGroup, hashes: Several[bytes], end: int) -> list[int]:
    first = group.first_block(end * group.block_size)
    found = [group.pool.find(content_hash) for content_hash in hashes[first:end]]
    return [block for block in found if block is not None]
