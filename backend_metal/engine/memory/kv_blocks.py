"""How many KV cache blocks fit, and how groups of layers share the memory for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from backend_metal.engine.schedule.block_group import most_blocks_held

GIB = 2**30
WINDOWS_KEPT = 4
"""For each place, ends of cached prefixes that others can go on from."""
MOST_FOR_RUNNING, MOST_WITH_KEPT = 0.5, 0.25
"""Of the memory, what windows get while layers that see all tokens want the rest."""


@dataclass(frozen=True)
class GroupBytes:
    window: int | None
    bytes_per_block: int


@dataclass(frozen=True)
class Demand:
    """What the engine could use at most."""

    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int

    @property
    def blocks_of_longest(self) -> int:
        return -(-self.max_model_len // self.block_size)

    def held_by_one(self, group: GroupBytes) -> int:
        """Blocks that a sequence of any length needs at once."""
        if group.window is None:
            return self.blocks_of_longest
        return min(most_blocks_held(group.window, self.block_size), self.blocks_of_longest)

    def running(self, group: GroupBytes) -> int:
        """Blocks for sequences in all places. With a window a step's tokens need some on top, which
        are given up when it is submitted."""
        chunk = 0 if group.window is None else self.max_num_batched_tokens // self.block_size
        longest = self.max_num_seqs * self.blocks_of_longest
        return min(self.max_num_seqs * self.held_by_one(group) + chunk, longest)

    def kept(self, group: GroupBytes) -> int:
        """Blocks with a window on top for prefixes that nobody runs."""
        return WINDOWS_KEPT * self.max_num_seqs * self.held_by_one(group)

    def useful(self, group: GroupBytes) -> int:
        """Blocks past which none could be used."""
        return self.running(group) + (0 if group.window is None else self.kept(group))

    def least_bytes(self, groups: Sequence[GroupBytes], wanted: int) -> int:
        """With ``wanted`` blocks of the first group: those, and what one sequence needs of the
        others."""
        return _bytes(groups, [wanted, *(self.least(group, wanted) for group in groups[1:])])

    def useful_bytes(self, groups: Sequence[GroupBytes], wanted: int | None = None) -> int:
        """Past which none could be used; ``wanted``: blocks of the first group, which are the most
        that others can use."""
        useful = [self.useful(group) for group in groups]
        if wanted is not None:
            useful = [wanted, *(min(wanted, blocks) for blocks in useful[1:])]
        return _bytes(groups, useful)

    def least(self, group: GroupBytes, wanted: int) -> int:
        """Blocks that one sequence of ``wanted`` blocks needs at once."""
        return min(wanted, self.held_by_one(group))


def num_kv_blocks(
    groups: Sequence[GroupBytes],
    demand: Demand,
    *,
    memory_bytes: int,
    memory_fraction: float,
    weight_bytes: int,
    state_bytes: int = 0,
    wanted: int | None = None,
) -> tuple[int, ...]:
    """Blocks of each group, for which the device's memory leaves room beside the weights and
    ``state_bytes`` of recurrent layers.

    Args:
        groups: the one of layers that see all tokens first.
        memory_bytes: what the device has.
        memory_fraction: most of it that weights and KV cache may take together.
        wanted: blocks of the first group; others get as many as are of use, and that many at most.

    Raises:
        ValueError: with the figures, when the weights leave no room for a single block of each, or
            for as many as are wanted.
    """
    budget = int(memory_bytes * memory_fraction)
    left = budget - weight_bytes - state_bytes
    told = f"the weights take {weight_bytes / GIB:.2f} GiB"
    if state_bytes:
        told += f" and recurrent state {state_bytes / GIB:.2f} GiB"
    of_each = sum(group.bytes_per_block for group in groups)
    if left < of_each:
        raise ValueError(
            f"{told} of the {budget / GIB:.2f} GiB that memory_fraction={memory_fraction} allows "
            f"of {memory_bytes / GIB:.2f} GiB, which leaves no room for a KV cache block of "
            f"{of_each / GIB:.4f} GiB: raise memory_fraction, or serve a smaller or more strongly "
            "quantized model"
        )
    if not of_each:
        return (wanted or demand.running(groups[0]),)
    if wanted is None:
        return split(groups, demand, left)
    first, *others = groups
    least = [demand.least(group, wanted) for group in others]
    taken = wanted * first.bytes_per_block
    rest = left - taken - _bytes(others, least)
    if rest < 0:
        most = (left - _bytes(others, least)) // first.bytes_per_block
        raise ValueError(
            f"num_kv_blocks must be at most {most}, not {wanted}, which take "
            f"{(left - rest) / GIB:.2f} GiB: {told} of what memory_fraction={memory_fraction} "
            f"allows of {memory_bytes / GIB:.2f} GiB"
        )
    useful = [min(wanted, demand.useful(one)) for one in others]
    return wanted, *_grown(others, least, useful, rest)


def split(groups: Sequence[GroupBytes], demand: Demand, num_bytes: int) -> tuple[int, ...]:
    """Blocks of each group that fit.

    Layers that see all tokens need blocks for all of them, others a window a sequence, so what is
    best depends on how long sequences are. Windows get what all places need, but half of the memory
    at most, and more for cached prefixes up to a quarter. Each group gets enough for the longest
    sequence that one size for all would hold.
    """
    of_each = num_bytes // sum(group.bytes_per_block for group in groups)
    if len(groups) == 1:
        return (min(of_each, demand.useful(groups[0])),)
    windows = [group for group in groups if group.window is not None]
    whole = groups[0] if len(windows) < len(groups) else None
    shares = (1.0, 1.0) if whole is None else (MOST_FOR_RUNNING, MOST_WITH_KEPT)
    most = num_bytes if whole is None else num_bytes - of_each * whole.bytes_per_block
    sizes = [min(of_each, demand.held_by_one(group)) for group in windows]
    running = [demand.running(group) for group in windows]
    useful = [demand.useful(group) for group in windows]
    for wanted, share in zip((running, useful), shares, strict=True):
        room = min(most, int(share * num_bytes)) - _bytes(windows, sizes)
        sizes = _grown(windows, sizes, wanted, room)
    if whole is None:
        return tuple(sizes)
    fits = (num_bytes - _bytes(windows, sizes)) // whole.bytes_per_block
    num_blocks = min(fits, demand.running(whole))
    return num_blocks, *(min(size, num_blocks) for size in sizes)


def _grown(
    groups: Sequence[GroupBytes], sizes: Sequence[int], wanted: Sequence[int], room: int
) -> list[int]:
    """``sizes``, made larger by the same part of what each lacks of ``wanted``, as far as there is
    room for."""
    more = [max(0, b - a) for a, b in zip(sizes, wanted, strict=True)]
    lacking = _bytes(groups, more)
    part = min(1.0, max(0, room) / lacking) if lacking else 0.0
    return [size + int(part * one) for size, one in zip(sizes, more, strict=True)]


def _bytes(groups: Sequence[GroupBytes], sizes: Sequence[int]) -> int:
    return sum(group.bytes_per_block * size for group, size in zip(groups, sizes, strict=True))
