"""Continuous batching: which tokens run in the next step, and who has to wait or make room.

Every step first serves the running sequences, decodes before prefill chunks, then admits waiting
ones, within one budget of tokens. Sequences are ranked by priority, then age. When blocks run out
the lowest-ranked running sequence is preempted: its blocks are freed and it is recomputed later,
mostly from the prefix cache. The highest-ranked sequence always makes progress, because admission
refuses a sequence that the pool could not hold alone. A pace may hold prompts back so that steps
end in time.
"""

from __future__ import annotations

import heapq
from bisect import insort
from itertools import islice

from backend_metal.engine.schedule.block_pool import BlockPool
from backend_metal.engine.schedule.sequence import Sequence, Status
from backend_metal.engine.schedule.step import ScheduledSequence, Step
from backend_metal.engine.schedule.step_pace import StepPace


class Scheduler:
    def __init__(
        self,
        pool: BlockPool,
        *,
        block_size: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        pace: StepPace,
    ) -> None:
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens must be at least max_num_seqs ({max_num_seqs}), so that "
                f"every running sequence can decode in each step, not {max_num_batched_tokens}"
            )
        self.pool = pool
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.pace = pace
        self.running: list[Sequence] = []
        """Ranked, highest first."""
        self._waiting: list[tuple[tuple[int, int, int], Sequence]] = []
        self.num_preemptions = 0
        self.num_prefix_query_tokens = 0
        self.num_prefix_hit_tokens = 0

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that the pool can hold."""
        return self.pool.num_blocks * self.block_size

    @property
    def waiting(self) -> list[Sequence]:
        return [sequence for _, sequence in self._waiting]

    @property
    def has_work(self) -> bool:
        return bool(self.running or self._waiting)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ``ValueError`` when the pool could never hold its tokens."""
        if sequence.num_tokens >= self.capacity_tokens:
            raise ValueError(
                f"{sequence.num_tokens} tokens and one to generate do not fit the KV cache of "
                f"{self.capacity_tokens} tokens"
            )
        self._enqueue(sequence)

    def schedule(self) -> Step:
        """Choose the next step's tokens and reserve their blocks."""
        step = Step()
        decodes = [sequence for sequence in self.running if sequence.num_uncomputed_tokens == 1]
        prefills = [sequence for sequence in self.running if sequence.num_uncomputed_tokens > 1]
        step.max_tokens = self._max_tokens(len(decodes))
        for sequence in decodes + prefills:
            num_tokens = min(sequence.num_uncomputed_tokens, step.budget)
            if sequence.status is Status.RUNNING and num_tokens > 0:
                self._schedule_running(step, sequence, num_tokens)
        while not step.num_preempted and self._admit_next(step):
            pass
        return step

    def complete(self, item: ScheduledSequence, next_token: int | None) -> None:
        """Account for what a step computed; ``next_token`` is what it drew, if it drew one."""
        sequence = item.sequence
        first_block = sequence.num_computed_tokens // self.block_size
        sequence.num_computed_tokens += item.num_tokens
        num_full_blocks = sequence.num_computed_tokens // self.block_size
        hashes = sequence.block_hashes(self.block_size)
        for block in range(first_block, min(num_full_blocks, len(hashes))):
            self.pool.cache(sequence.block_table[block], hashes[block])
        if next_token is not None:
            sequence.tokens.append(next_token)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its blocks."""
        self._take_out(sequence)
        sequence.status = Status.FINISHED

    def pause(self, sequence: Sequence) -> None:
        """Take a sequence out until it is added again. As after a preemption, what it computed is
        found in the prefix cache unless somebody needed the room."""
        self._take_out(sequence)
        sequence.status = Status.PAUSED

    def preempt_all(self) -> None:
        """Send every running sequence back to be recomputed."""
        for sequence in list(self.running):
            self._preempt(sequence)

    def _max_tokens(self, num_decodes: int) -> int:
        room = self.max_num_batched_tokens - num_decodes
        return num_decodes + self.pace.max_prefill_tokens(num_decodes, room)

    def _schedule_running(self, step: Step, sequence: Sequence, num_tokens: int) -> None:
        """Add a running sequence to the step, preempting until it has its blocks.

        Only decodes can lack a block, since a prompt gets all of its blocks at admission. They are
        served in order of rank, so that no victim is in the step yet.
        """
        while self._num_new_blocks(sequence, num_tokens) > self.pool.num_free:
            victim = self.running[-1]
            self._preempt(victim)
            self.num_preemptions += 1
            step.num_preempted += 1
            if victim is sequence:
                return
        self._reserve(sequence, num_tokens)
        step.add(ScheduledSequence(sequence, num_tokens))

    def _admit_next(self, step: Step) -> bool:
        """Start the first waiting sequence, if the step, the batch and the pool have room."""
        max_running = self.pace.max_sequences(self.max_num_seqs)
        if not self._waiting or step.budget < 1 or len(self.running) >= max_running:
            return False
        sequence = self._waiting[0][1]
        if self.pool.num_gains < sequence.awaited_gains:
            return False
        found = self._find_prefix(sequence)
        num_free = self.pool.num_free - sum(map(self.pool.is_free, found))
        num_missing = self._num_blocks(sequence.num_tokens) - len(found) - num_free
        if num_missing > 0:
            sequence.awaited_gains = self.pool.num_gains + num_missing
            return False
        heapq.heappop(self._waiting)
        self._attach_prefix(sequence, found)
        num_tokens = sequence.num_uncomputed_tokens
        sequence.status = Status.RUNNING
        insort(self.running, sequence, key=lambda running: running.order)
        self._reserve(sequence, num_tokens)
        step.add(ScheduledSequence(sequence, min(num_tokens, step.budget)))
        return True

    def _find_prefix(self, sequence: Sequence) -> list[int]:
        """The cached blocks that hold the sequence's first tokens.

        They end short of the newest token, which is run in any case, since its logits are wanted;
        so a shared block is never written.
        """
        blocks = []
        most_blocks = (sequence.num_tokens - 1) // self.block_size
        for content_hash in islice(sequence.block_hashes(self.block_size), most_blocks):
            block = self.pool.find(content_hash)
            if block is None:
                break
            blocks.append(block)
        return blocks

    def _attach_prefix(self, sequence: Sequence, blocks: list[int]) -> None:
        for block in blocks:
            self.pool.share(block)
            sequence.block_table.append(block)
        sequence.num_computed_tokens = len(blocks) * self.block_size
        if sequence.counts_prefix_hit:
            sequence.counts_prefix_hit = False
            sequence.num_cached_tokens = sequence.num_computed_tokens
            self.num_prefix_query_tokens += sequence.num_prompt_tokens
            self.num_prefix_hit_tokens += sequence.num_cached_tokens

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _num_new_blocks(self, sequence: Sequence, num_tokens: int) -> int:
        """Blocks that the sequence lacks for its next tokens."""
        wanted = self._num_blocks(sequence.num_computed_tokens + num_tokens)
        return max(0, wanted - len(sequence.block_table))

    def _reserve(self, sequence: Sequence, num_tokens: int) -> None:
        for _ in range(self._num_new_blocks(sequence, num_tokens)):
            sequence.block_table.append(self.pool.allocate())

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free_blocks(sequence)
        self._enqueue(sequence)

    def _take_out(self, sequence: Sequence) -> None:
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
        elif sequence.status is Status.WAITING:
            self._waiting.remove((sequence.order, sequence))
            heapq.heapify(self._waiting)
        self._free_blocks(sequence)

    def _free_blocks(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table.view().tolist())
        sequence.block_table.clear()
        sequence.num_computed_tokens = 0

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        heapq.heappush(self._waiting, (sequence.order, sequence))

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` when the bookkeeping contradicts itself."""
        self.pool.check_integrity(sequence.block_table.view().tolist() for sequence in self.running)
        assert len(self.running) <= self.max_num_seqs, f"{len(self.running)} sequences run"
        assert self.running == sorted(self.running, key=lambda sequence: sequence.order)
        for sequence in self.running:
            covered = len(sequence.block_table) * self.block_size
            assert sequence.status is Status.RUNNING
            assert sequence.num_computed_tokens < sequence.num_tokens
            assert sequence.num_computed_tokens <= covered, "computed tokens without a block"
            first_written = sequence.num_computed_tokens // self.block_size
            for block in sequence.block_table.view()[first_written:].tolist():
                assert self.pool.is_writable(block), f"block {block} is shared, and to be written"
        for sequence in self.waiting:
            assert sequence.status is Status.WAITING
            assert not len(sequence.block_table), "a waiting sequence holds blocks"
