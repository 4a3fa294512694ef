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
from collections import defaultdict

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
        prefix_caching: bool,
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
        self.prefix_caching = prefix_caching
        self.pace = pace
        self.running: list[Sequence] = []
        """Ranked, highest first."""
        self._waiting: list[tuple[tuple[int, int, int], Sequence]] = []
        self._forks: dict[Sequence, list[Sequence]] = defaultdict(list)
        """Sequences that wait for their parent's prompt to be computed."""
        self.num_preemptions = 0
        self.num_prefix_query_tokens = 0
        self.num_prefix_hit_tokens = 0

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that the pool can hold."""
        return self.pool.num_blocks * self.block_size

    @property
    def waiting(self) -> list[Sequence]:
        queued = [sequence for _, sequence in self._waiting]
        return queued + [child for children in self._forks.values() for child in children]

    @property
    def has_work(self) -> bool:
        return bool(self.running or self._waiting or self._forks)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ``ValueError`` when the pool could never hold its tokens."""
        if sequence.num_tokens >= self.capacity_tokens:
            raise ValueError(
                f"{sequence.num_tokens} tokens and one to generate do not fit the KV cache of "
                f"{self.capacity_tokens} tokens"
            )
        parent = sequence.parent
        if parent and parent.status is not Status.FINISHED and not parent.is_prompt_computed:
            self._forks[parent].append(sequence)
        else:
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
        if self.prefix_caching:
            hashes = sequence.block_hashes(self.block_size)
            for block in range(first_block, sequence.num_computed_tokens // self.block_size):
                self.pool.cache(sequence.block_table[block], hashes[block])
        if next_token is not None:
            sequence.tokens.append(next_token)
        if sequence.is_prompt_computed:
            self._enqueue_forks(sequence)

    def finish(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is, and free its blocks."""
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
        elif sequence.status is Status.WAITING:
            self._remove_waiting(sequence)
        self._free_blocks(sequence)
        sequence.status = Status.FINISHED
        self._enqueue_forks(sequence)

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
        while self._num_blocks_needed(sequence, num_tokens) > self.pool.num_free:
            victim = self.running[-1]
            self._preempt(victim)
            self.num_preemptions += 1
            step.num_preempted += 1
            if victim is sequence:
                return
        self._reserve(step, sequence, num_tokens)
        step.add(ScheduledSequence(sequence, num_tokens))

    def _admit_next(self, step: Step) -> bool:
        """Start the first waiting sequence, if the step, the batch and the pool have room."""
        max_running = self.pace.max_sequences(self.max_num_seqs)
        if not self._waiting or step.budget < 1 or len(self.running) >= max_running:
            return False
        sequence = self._waiting[0][1]
        num_found = self._attach_prefix(sequence)
        num_tokens = sequence.num_uncomputed_tokens
        if self._num_blocks_needed(sequence, num_tokens) > self.pool.num_free:
            self._free_blocks(sequence)
            return False
        heapq.heappop(self._waiting)
        self._count_prefix_hit(sequence, num_found)
        sequence.status = Status.RUNNING
        insort(self.running, sequence, key=lambda running: running.order)
        self._reserve(step, sequence, num_tokens)
        step.add(ScheduledSequence(sequence, min(num_tokens, step.budget)))
        return True

    def _attach_prefix(self, sequence: Sequence) -> int:
        """Share the blocks that already hold the sequence's first tokens; returns those tokens.

        The newest token is run in any case, since its logits are wanted: where its block is shared
        too, writing it copies the block.
        """
        parent = sequence.parent
        if parent and parent.status is Status.RUNNING and parent.is_prompt_computed:
            num_blocks = self._num_blocks(sequence.num_prompt_tokens)
            blocks = parent.block_table.view()[:num_blocks].tolist()
            num_found = sequence.num_prompt_tokens
        elif self.prefix_caching:
            blocks = []
            for content_hash in sequence.block_hashes(self.block_size):
                block = self.pool.find(content_hash)
                if block is None:
                    break
                blocks.append(block)
            num_found = len(blocks) * self.block_size
        else:
            return 0
        for block in blocks:
            self.pool.share(block)
            sequence.block_table.append(block)
        sequence.num_computed_tokens = min(num_found, sequence.num_tokens - 1)
        return sequence.num_computed_tokens

    def _count_prefix_hit(self, sequence: Sequence, num_found: int) -> None:
        if sequence.has_run:
            return
        sequence.has_run = True
        if sequence.parent:
            sequence.num_cached_tokens = sequence.parent.num_cached_tokens
        elif self.prefix_caching:
            sequence.num_cached_tokens = num_found
            self.num_prefix_query_tokens += sequence.num_prompt_tokens
            self.num_prefix_hit_tokens += num_found

    def _num_blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def _unwritable(self, sequence: Sequence, num_tokens: int) -> list[int]:
        """Indices in the block table that the next tokens would write but must not."""
        first = sequence.num_computed_tokens // self.block_size
        stop = min(
            self._num_blocks(sequence.num_computed_tokens + num_tokens), len(sequence.block_table)
        )
        return [
            index
            for index in range(first, stop)
            if not self.pool.is_writable(sequence.block_table[index])
        ]

    def _num_blocks_needed(self, sequence: Sequence, num_tokens: int) -> int:
        total = self._num_blocks(sequence.num_computed_tokens + num_tokens)
        new = max(0, total - len(sequence.block_table))
        return new + len(self._unwritable(sequence, num_tokens))

    def _reserve(self, step: Step, sequence: Sequence, num_tokens: int) -> None:
        """Give the sequence blocks that its next tokens may write."""
        for index in self._unwritable(sequence, num_tokens):
            source, destination = sequence.block_table[index], self.pool.allocate()
            sequence.block_table[index] = destination
            self.pool.release([source])
            step.copy_block(source, destination)
        while len(sequence.block_table) < self._num_blocks(
            sequence.num_computed_tokens + num_tokens
        ):
            sequence.block_table.append(self.pool.allocate())

    def _preempt(self, sequence: Sequence) -> None:
        self.running.remove(sequence)
        self._free_blocks(sequence)
        self._enqueue(sequence)

    def _free_blocks(self, sequence: Sequence) -> None:
        self.pool.release(sequence.block_table.view().tolist())
        sequence.block_table.clear()
        sequence.num_computed_tokens = 0

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        heapq.heappush(self._waiting, (sequence.order, sequence))

    def _remove_waiting(self, sequence: Sequence) -> None:
        parent = sequence.parent
        if parent in self._forks and sequence in self._forks[parent]:
            self._forks[parent].remove(sequence)
            if not self._forks[parent]:
                del self._forks[parent]
        else:
            self._waiting.remove((sequence.order, sequence))
            heapq.heapify(self._waiting)

    def _enqueue_forks(self, parent: Sequence) -> None:
        for child in self._forks.pop(parent, ()):
            self._enqueue(child)

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
        for sequence in self.waiting:
            assert sequence.status is Status.WAITING
            assert not len(sequence.block_table), "a waiting sequence holds blocks"
        for parent in self._forks:
            assert parent.status is not Status.FINISHED
            assert not parent.is_prompt_computed
