"""Continuous batching: which tokens run in the next step, and who has to wait or make room.

Every step decodes all running sequences that have their prompt behind them, and divides what is
left of its budget of tokens between prompts, those of newly admitted sequences included, and tokens
of answers that were forced and so need no step each (``prefill_budget.py``). Who is next, and who
is preempted when blocks run out or a place is due to somebody else, says ``shares.py``, and how
many places are too many for one, ``crowding.py``. A preempted sequence's blocks are freed and it is
recomputed later, mostly from the prefix cache. A pace may hold prompts back so that steps end in
time.

Every sequence comes to its end. Admission refuses what the pool could not hold alone, so some
sequence is left to run, whoever is preempted. Only decodes lack blocks, since a prompt gets all of
its blocks at admission. Those that a step finds lacking have drawn a token in the step before, so
there is a token for every step that takes blocks away; between two tokens places change hands a
bounded number of times, since each change makes their shares more even, and prompts go on. A tenant
that is thinned out keeps a place.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable

from backend_metal.engine.schedule.block_pool import BlockPool
from backend_metal.engine.schedule.block_tables import BlockTables
from backend_metal.engine.schedule.crowding import STEPS_TILL_ALONE, most_places, surplus
from backend_metal.engine.schedule.prefill_budget import MOST_PIECES, divide
from backend_metal.engine.schedule.prompt_readings import MAX_ROWS_PER_STEP
from backend_metal.engine.schedule.sequence import Sequence, Status
from backend_metal.engine.schedule.shares import NONE_OF_IT, Shares
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
        self._tables = BlockTables(pool, block_size)
        self.block_size = block_size
        self.max_num_seqs = max_num_seqs
        self.max_num_batched_tokens = max_num_batched_tokens
        self.pace = pace
        self.running: list[Sequence] = []
        """By priority, then age."""
        self._shares = Shares()
        self._settled_at = -1
        """The shares' ``num_changes`` when the batch was full and nobody's place another's due."""
        self._num_steps_alone = STEPS_TILL_ALONE
        self.num_preemptions = 0
        self.num_prefix_query_tokens = 0
        self.prefix_misses: Counter[str] = Counter()
        self.num_prefix_hit_tokens = 0

    @property
    def capacity_tokens(self) -> int:
        """The longest sequence that the pool can hold."""
        return self.pool.num_blocks * self.block_size

    @property
    def waiting(self) -> list[Sequence]:
        return self._shares.waiting

    @property
    def has_work(self) -> bool:
        return self._shares.has_any

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ``ValueError`` when the pool could never hold its tokens."""
        if sequence.least_room > self.capacity_tokens:
            raise ValueError(
                f"{sequence.num_tokens} tokens and one to generate do not fit the KV cache of "
                f"{self.capacity_tokens} tokens"
            )
        self._enqueue(sequence)

    def schedule(self) -> Step:
        """Choose the next step's tokens and reserve their blocks."""
        if not self._make_room():
            self._thin_out()
            self._admit()
        step = Step()
        decodes, prefills = self._phases()
        given = divide(self._prefill_budget(len(decodes)), prefills)
        for sequence in decodes:
            step.add(ScheduledSequence(sequence, 1 + given.pop(sequence, 0)))
        rows_left = MAX_ROWS_PER_STEP
        for sequence, num_tokens in given.items():
            if sequence.reads_prompt:
                num_tokens = min(num_tokens, rows_left)
                rows_left -= num_tokens
            if num_tokens:
                step.add(ScheduledSequence(sequence, num_tokens))
        return step

    def complete(self, item: ScheduledSequence, next_token: int | None) -> None:
        """Account for what a step computed; ``next_token`` is what it drew, if it drew one."""
        sequence = item.sequence
        self._tables.computed(sequence, item.num_tokens)
        if next_token is not None:
            sequence.tokens.append(next_token)

    def extend(self, sequence: Sequence, forced_tokens: Iterable[int]) -> None:
        """Tokens behind the one that was drawn, which need no draw."""
        for token_id in forced_tokens:
            sequence.tokens.append(token_id)

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
            self._take_out(sequence)
            self._enqueue(sequence)

    def _phases(self) -> tuple[list[Sequence], dict[Sequence, int]]:
        """The running sequences that get a token in any case, since they answer, and the tokens
        that any lack beside that: of a prompt, or forced ones."""
        decodes: list[Sequence] = []
        prefills: dict[Sequence, int] = {}
        for sequence in self.running:
            num_tokens = sequence.num_uncomputed_tokens
            if num_tokens == 1 or sequence.is_prompt_computed:
                decodes.append(sequence)
                num_tokens -= 1
            if num_tokens:
                prefills[sequence] = num_tokens
        return decodes, prefills

    def _prefill_budget(self, num_decodes: int) -> int:
        room = self.max_num_batched_tokens - num_decodes
        return self.pace.max_prefill_tokens(num_decodes, room)

    def _make_room(self) -> bool:
        """Reserve the blocks of all that answer; whether any sequence was preempted for that."""
        was_enough = True
        while True:
            # A prompt has all of its blocks.
            lacking = {
                sequence: self._tables.num_lacking(sequence, sequence.num_uncomputed_tokens)
                for sequence in self.running
            }
            if sum(lacking.values()) <= self.pool.num_free:
                break
            was_enough = False
            self._preempt(self._shares.first_to_go(self.running))
        for sequence, num_blocks in lacking.items():
            if num_blocks:
                self._tables.reserve(sequence, sequence.num_uncomputed_tokens)
        return not was_enough

    def _admit(self) -> None:
        """Start waiting sequences, as long as the batch, the pool and the step have room."""
        refused: Counter[str] = Counter()
        num_admitted = 0
        while len(refused) <= MOST_PIECES:
            sequence, victim = self._next(refused)
            if sequence is None or self.pool.num_gains < sequence.awaited_gains:
                return
            if victim is None and self._has_its_part(sequence, num_admitted):
                refused[sequence.tenant] = NONE_OF_IT
                continue
            found = self._tables.find_prefix(sequence)
            num_tokens = sequence.num_tokens - len(found) * self.block_size
            if not self._would_prefill(sequence, num_tokens):
                refused[sequence.tenant] += 1
                continue
            if victim is not None:
                self._preempt(victim)
            if not self._start(sequence, found):
                return
            num_admitted += 1

    def _thin_out(self) -> None:
        """Take places from whoever has far more than its part of a step."""
        if not self._shares.has_several_tenants:
            self._num_steps_alone += 1
            return
        self._num_steps_alone = 0
        counts = Counter(sequence.tenant for sequence in self.running)
        for one in {sequence.tenant: sequence for sequence in self.running}.values():
            if counts[one.tenant] == 1:
                continue
            for _ in range(surplus(one, self.running, self.pace.cost.base_in_decodes)):
                own = [other for other in self.running if other.tenant == one.tenant]
                self._preempt(self._shares.first_to_go(own))

    def _has_its_part(self, sequence: Sequence, num_admitted: int) -> bool:
        if not self._shares.has_several_tenants:
            return num_admitted > 0 and self._num_steps_alone < STEPS_TILL_ALONE
        count = sum(other.tenant == sequence.tenant for other in self.running)
        return count + 1 > most_places(sequence, self.running, self.pace.cost.base_in_decodes)

    def _next(self, refused: Counter[str]) -> tuple[Sequence | None, Sequence | None]:
        """The next to start, and who is to give it a place if there is none."""
        if len(self.running) < self.pace.max_sequences(self.max_num_seqs):
            return self._shares.next_waiting(refused), None
        if self._shares.num_changes == self._settled_at:
            return None, None
        exchange = self._shares.next_exchange(self.running, refused)
        if exchange is None and not refused:
            self._settled_at = self._shares.num_changes
        return exchange or (None, None)

    def _start(self, sequence: Sequence, found: list[int]) -> bool:
        """Run a waiting sequence whose first blocks are ``found``, if there are all others."""
        if num_missing := self._tables.num_missing(sequence, found):
            sequence.awaited_gains = self.pool.num_gains + num_missing
            return False
        self._shares.start(sequence)
        sequence.status = Status.RUNNING
        insort(self.running, sequence, key=lambda running: running.order)
        if sequence.counts_prefix_hit:
            sequence.prefix_miss = self._tables.why_no_more(sequence, found)
        self._tables.attach_prefix(sequence, found)
        self._count_prefix_hit(sequence)
        self._tables.reserve(sequence, sequence.num_uncomputed_tokens)
        return True

    def _count_prefix_hit(self, sequence: Sequence) -> None:
        if sequence.counts_prefix_hit:
            sequence.counts_prefix_hit = False
            sequence.num_cached_tokens = sequence.num_computed_tokens
            if sequence.prefix_miss is not None:
                self.prefix_misses[sequence.prefix_miss] += 1
            self.num_prefix_query_tokens += sequence.num_prompt_tokens
            self.num_prefix_hit_tokens += sequence.num_cached_tokens

    def _would_prefill(self, sequence: Sequence, num_tokens: int) -> bool:
        """Whether the step has tokens for a sequence that lacks so many."""
        decodes, prefills = self._phases()
        budget = self._prefill_budget(len(decodes))
        return divide(budget, {**prefills, sequence: num_tokens})[sequence] > 0

    def _preempt(self, sequence: Sequence) -> None:
        self.num_preemptions += 1
        self._take_out(sequence)
        self._enqueue(sequence)

    def _take_out(self, sequence: Sequence) -> None:
        if sequence.status is Status.RUNNING:
            self.running.remove(sequence)
            self._shares.remove_running(sequence)
        elif sequence.status is Status.WAITING:
            self._shares.remove_waiting(sequence)
        self._tables.free(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        self._shares.add_waiting(sequence)

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` when the bookkeeping contradicts itself."""
        self._tables.check_integrity(self.running)
        assert len(self.running) <= self.max_num_seqs, f"{len(self.running)} sequences run"
        assert self.running == sorted(self.running, key=lambda sequence: sequence.order)
        self._shares.check_integrity(self.running)
        for sequence in self.running:
            assert sequence.status is Status.RUNNING
        for sequence in self.waiting:
            assert sequence.status is Status.WAITING
            assert not len(sequence.block_table), "a waiting sequence holds blocks"
