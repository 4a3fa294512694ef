"""Who holds which slot of recurrent state, and which slots are snapshots worth finding again.

A step reads a sequence's state from one slot and writes it to another, mostly the same. A snapshot
is a slot that nobody writes any more: it is named by the hash of the block that ends there, and
found by it as blocks are. The sequence that made it reads it once more, and writes a fresh slot.

Slots and blocks differ in one thing: a state can't be taken back, so a hit begins where a snapshot
is, and what the blocks hold beyond it is computed again.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

from backend_metal.engine.schedule.block_pool import BlockPool
from backend_metal.engine.schedule.sequence import FROM_ZEROS, HeldState, Sequence
from backend_metal.engine.schedule.snapshot_borders import (
    SnapshotPolicy,
    snapshot_borders,
    whole_blocks,
)


class StateSlots:
    """Every running sequence holds a slot of its own; snapshots have all others."""

    def __init__(
        self,
        num_slots: int,
        block_size: int,
        policy: SnapshotPolicy | None = None,
        *,
        bytes_per_slot: int = 0,
    ) -> None:
        """``bytes_per_slot``: for statistics alone."""
        self.bytes_per_slot = bytes_per_slot
        self._pool = BlockPool(num_slots)
        self._block_size = block_size
        self._policy = policy = policy or SnapshotPolicy()
        self._interval = whole_blocks(policy.interval, block_size)
        self._answer_interval = whole_blocks(policy.answer_interval, block_size)
        self._num_of_answers = 0
        """Sequences that run and have kept a state of their answer."""
        self.num_snapshots_taken = 0
        self.num_snapshots_evicted = 0
        """For others, and for sequences that run."""

    @property
    def num_slots(self) -> int:
        return self._pool.num_blocks

    @property
    def num_free(self) -> int:
        """Slots that a new sequence could take, snapshots that nobody reads included."""
        return self._pool.num_free

    @property
    def num_snapshots(self) -> int:
        return self._pool.num_cached

    def deepest(self, sequence: Sequence, num_blocks: int) -> int:
        """Of a sequence's first ``num_blocks`` blocks, how many end where a snapshot is."""
        hashes = sequence.block_hashes(self._block_size)
        for count in range(min(num_blocks, len(hashes)), 0, -1):
            if self._pool.find(hashes[count - 1]) is not None:
                return count
        return 0

    def was_evicted(self, sequence: Sequence, first: int, stop: int) -> bool:
        """Whether there was a snapshot of late behind any of these blocks, and is none now."""
        hashes = islice(sequence.block_hashes(self._block_size), first, stop)
        return any(map(self._pool.was_evicted, hashes))

    def start(self, sequence: Sequence, num_blocks: int, parting: int) -> None:
        """Take a slot for a sequence that begins behind its first ``num_blocks`` blocks, where a
        snapshot is unless there are none. There is a free slot.

        ``parting``: how many of its tokens others are known to share.
        """
        read = FROM_ZEROS
        if num_blocks:
            name = sequence.block_hashes(self._block_size)[num_blocks - 1]
            found = self._pool.find(name)
            assert found is not None, "a sequence begins where no snapshot is"
            read = found
        is_last_slot = self._pool.num_free == 1 and read >= 0 and self._pool.is_free(read)
        if read >= 0 and not is_last_slot:
            self._pool.share(read)
        # The last slot, if the snapshot is in that, becomes the sequence's own.
        write = self._allocate()
        borders = snapshot_borders(
            num_blocks * self._block_size,
            sequence.num_tokens,
            # What follows the prompt need not be what follows it for others.
            parting=(parting, sequence.num_history_tokens, sequence.num_prompt_tokens - 1),
            block_size=self._block_size,
            policy=self._policy,
        )
        sequence.state = HeldState(read, write, borders)
        sequence.borders |= {border // self._block_size for border in borders}

    def most_tokens(self, sequence: Sequence, num_tokens: int) -> int:
        """Of the next ``num_tokens``, those before the next snapshot: a step ends there."""
        computed = sequence.num_computed_tokens
        borders = sequence.state.borders if sequence.state is not None else ()
        ahead = (border - computed for border in borders if border > computed)
        return min(next(ahead, num_tokens), num_tokens)

    def computed(self, sequence: Sequence, *, goes_on: bool) -> None:
        """A step that is submitted has written the state of all ``num_computed_tokens``, which are
        known. ``goes_on``: another step follows."""
        held = sequence.state
        assert held is not None, "a sequence runs without a slot"
        if held.read not in (FROM_ZEROS, held.write):
            self._pool.release([held.read])
        held.read = held.write
        name = self._name(sequence)
        if name is None:
            return
        position = sequence.num_computed_tokens
        is_answer = sequence.is_prompt_computed
        if position in held.borders or (is_answer and position % self._interval == 0):
            self._keep(held, name, goes_on=goes_on)
        elif is_answer and position % self._answer_interval == 0:
            self._replace(held, name, goes_on=goes_on)

    def free(self, sequence: Sequence) -> None:
        held, sequence.state = sequence.state, None
        if held is not None:
            self._num_of_answers -= held.of_answer is not None
            self._pool.release(held.slots)

    def clear_cache(self) -> None:
        """Forget every snapshot; who reads one goes on."""
        self._pool.clear_cache()

    def _name(self, sequence: Sequence) -> bytes | None:
        """Of its state as it is; None inside a block, and where nobody may share it."""
        num_blocks, rest = divmod(sequence.num_computed_tokens, self._block_size)
        hashes = sequence.block_hashes(self._block_size)
        return None if rest or len(hashes) < num_blocks else hashes[num_blocks - 1]

    def _keep(self, held: HeldState, name: bytes, *, goes_on: bool) -> bool:
        """Whether there was no such snapshot, and room for it."""
        if (known := self._pool.find(name)) is not None:
            self._touch(known)
            return False
        fresh = held.write
        if goes_on:
            if not self._pool.num_free:
                return False
            fresh = self._allocate()
        self._pool.cache(held.write, name)
        self.num_snapshots_taken += 1
        held.write = fresh
        return True

    def _replace(self, held: HeldState, name: bytes, *, goes_on: bool) -> None:
        """Keep this state of an answer and not the one before. Answers have at most a quarter of
        what sequences leave, lest they evict what prompts begin with."""
        self._forget_answer(held)
        has_room = 4 * self._num_of_answers < self._pool.num_free
        if has_room and self._keep(held, name, goes_on=goes_on):
            held.of_answer = name
            self._num_of_answers += 1

    def _forget_answer(self, held: HeldState) -> None:
        if held.of_answer is not None:
            self._pool.forget(held.of_answer)
            held.of_answer = None
            self._num_of_answers -= 1

    def _touch(self, slot: int) -> None:
        """It is the latest to be used."""
        self._pool.share(slot)
        self._pool.release([slot])

    def _allocate(self) -> int:
        before = self._pool.num_cached
        slot = self._pool.allocate()
        self.num_snapshots_evicted += before - self._pool.num_cached
        return slot

    def check_integrity(self, running: Iterable[Sequence]) -> None:
        """Raises ``AssertionError`` unless ``running`` hold all slots that are not free."""
        held = [sequence.state for sequence in running if sequence.state is not None]
        self._pool.check_integrity(state.slots for state in held)
        assert self._num_of_answers == sum(state.of_answer is not None for state in held)
        for state in held:
            is_own = self._pool.is_writable(state.write)
            assert is_own, f"slot {state.write} is shared or a snapshot, and to be written"
