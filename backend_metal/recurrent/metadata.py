"""Where a step's sequences have their state: the arrays that recurrent operators are given."""

from __future__ import annotations

from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backend_metal.native import MakeArray

Ints = npt.NDArray[np.int32]

FROM_ZEROS = -1
"""The read slot of a sequence that begins."""


@dataclass(frozen=True)
class StateMetadata:
    """A step reads a sequence's state from its read slot and writes it to its write slot.

    So nothing is zeroed for a sequence that begins, and a state is never copied: who continues
    another's state (a prefix hit, a fork) reads that one's slot and writes one of its own, and a
    snapshot is a slot that nobody writes any more. In most steps a sequence reads and writes one
    slot. Sequences run in any order, on several threads: no slot is written twice in a step, or
    written by one sequence and read by another.
    """

    read_slots: mx.array
    """int32 ``[num_seqs]``; ``FROM_ZEROS``: there is no state yet"""
    write_slots: mx.array
    """int32 ``[num_seqs]``"""
    cu_seqlens_q: mx.array
    """int32 ``[num_seqs + 1]``: where each sequence's tokens begin; every one has at least one"""
    segments: tuple[int, ...]
    """The same, for who cuts a step up on the host"""
    begins: tuple[bool, ...]
    """Of each sequence, whether there is no state yet; for the host, too"""

    @staticmethod
    def of(
        read_slots: Ints,
        write_slots: Ints,
        cu_seqlens_q: Ints,
        *,
        make_array: MakeArray = mx.array,
    ) -> StateMetadata:
        return StateMetadata(
            make_array(read_slots),
            make_array(write_slots),
            make_array(cu_seqlens_q),
            tuple(cu_seqlens_q.tolist()),
            tuple((read_slots < 0).tolist()),
        )

    @property
    def num_seqs(self) -> int:
        return len(self.segments) - 1

    def check_integrity(self, num_slots: int) -> None:
        """Raises ``AssertionError`` where what the class promises does not hold."""
        reads, writes = np.asarray(self.read_slots), np.asarray(self.write_slots)
        assert reads.shape == writes.shape == (self.num_seqs,), (reads, writes, self.segments)
        assert self.segments[0] == 0, self.segments
        assert (np.diff(self.segments) > 0).all(), f"a sequence without tokens: {self.segments}"
        assert ((reads >= FROM_ZEROS) & (reads < num_slots)).all(), reads
        assert ((writes >= 0) & (writes < num_slots)).all(), writes
        assert len(set(writes.tolist())) == len(writes), f"a slot is written twice: {writes}"
        readers = {slot: seq for seq, slot in enumerate(writes.tolist())}
        for seq, slot in enumerate(reads.tolist()):
            assert readers.get(slot, seq) == seq, f"slot {slot} is written while {seq} reads it"
