"""Continuous batching: which tokens run in the next step, and who has to wait or make room.

Every step decodes all running sequences that have their prompt behind them, and divides what is
left of its budget of tokens between prompts, those of newly admitted sequences included, and tokens
of answers that were forced and so need no step each (``prefill_budget.py``), unless one each is
cheaper (``step_pace.py``). Who is next, and who is preempted when blocks run out or a place is due
to somebody else, says ``shares.py``, and how many places are too many for one, ``crowding.py``. A
preempted sequence's blocks are freed and it is recomputed later, mostly from the prefix cache. A
pace may hold prompts back so that steps end in time.

Every sequence comes to its end. Admission refuses what the pool could not hold alone, so some
sequence is left to run, whoever is preempted. Only decodes lack blocks, since a prompt gets at
admission all blocks that it ever holds at once. Those that a step finds lacking have drawn a token
in the step before, so there is a token for every step that takes blocks away; between two tokens
places change hands a bounded number of times, since each change makes their shares more even, and
prompts go on. A tenant that is thinned out keeps a place.

There is one exception. A prompt passes by blocks, with a window, and takes as many others; those
that another sequence shares are not free for that. Each is lacking once, and prompts go on.
"""

from __future__ import annotations

from bisect import insort
from collections import Counter
from collections.abc import Iterable

from backend_metal.engine.schedule.block_group import BlockGroup
from backend_metal.engine.schedule.block_tables import BlockTables
from backend_metal.engine.schedule.crowding import STEPS_TILL_ALONE, most_places, surplus
from backend_metal.engine.schedule.prefill_budget import MOST_PIECES, divide
from backend_metal.engine.schedule.prefix_match import PrefixMatch, match_prefix, why_no_more
from backend_metal.engine.schedule.prompt_readings import MAX_ROWS_PER_STEP
from backend_metal.engine.schedule.sequence import Sequence, Status
from backend_metal.engine.schedule.shares import NONE_OF_IT, Shares
from backend_metal.engine.schedule.state_slots import StateSlots
from backend_metal.engine.schedule.step import ScheduledSequence, Step
from backend_metal.engine.schedule.step_pace import StepPace


class Scheduler:
    def __init__(
        self,
        groups: tuple[BlockGroup, ...],
        *,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        pace: StepPace,
        states: StateSlots | None = None,
    ) -> None:
        """``groups``: the blocks of layers that see the same tokens, of one block size. ``states``:
        for a model with recurrent layers."""
        if max_num_batched_tokens < max_num_seqs:
            raise ValueError(
                f"max_num_batched_tokens must be at least max_num_seqs ({max_num_seqs}), so that "
                f"every running sequence can decode in each step, not {max_num_batched_tokens}"
            )
        self.groups = groups
        """First, where there is one, that of layers that see all tokens."""
        self.states = states
        self._tables = BlockTables(groups)
        self.block_size = groups[0].block_size
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
        """The longest sequence that all groups can hold."""
        return min(group.capacity_tokens for group in self.groups)

    @property
    def waiting(self) -> list[Sequence]:
        return self._shares.waiting

    @property
    def has_work(self) -> bool:
        return self._shares.has_any

    @property
    def holds_blocks(self) -> bool:
        return any(group.pool.num_free < group.pool.num_blocks for group in self.groups)

    def add(self, sequence: Sequence) -> None:
        """Queue a sequence. Raises ``ValueError`` when the pool could never hold its tokens."""
        if sequence.least_room > self.capacity_tokens:
            raise ValueError(
                f"{sequence.num_tokens} tokens and one to generate do not fit the KV cache of "
                f"{self.capacity_tokens} tokens"
            )
        self._enqueue(sequence)

    def schedule(self) -> Step:
        """Choose the next step's tokens and reserve their blocks.

        The step before may be under way: a device does things in the order in which they are
        submitted. ``draw`` is next for this step.
        """
        step = Step()
        if not self._make_room():
            self._thin_out()
            step.started = self._admit()
        decodes, prefills = self._phases()
        if prefills and not self._pays(decodes, prefills):
            prefills = {}
        given = divide(self._prefill_budget(len(decodes)), prefills) if prefills else {}
        fit = self._tables.fit if self._tables.has_windows else _all
        for sequence in decodes:
            step.add(ScheduledSequence(sequence, fit(sequence, 1 + given.pop(sequence, 0))))
        rows_left = MAX_ROWS_PER_STEP
        for sequence, num_tokens in given.items():
            if sequence.reads_prompt:
                num_tokens = min(num_tokens, rows_left)
                rows_left -= num_tokens
            if num_tokens:
                step.add(ScheduledSequence(sequence, fit(sequence, num_tokens)))
        return step

    def draw(self, step: Step) -> None:
        """Account for what a step that is submitted computes, and say whose next tokens it draws;
        the tokens before are known by now. A sequence that wants nothing more gives up its place
        and its blocks."""
        for item in step.scheduled:
            sequence = item.sequence
            if sequence.status is Status.FINISHED:
                continue
            self._tables.computed(sequence, item.num_tokens)
            if self.states is not None:
                self.states.computed(sequence, goes_on=not item.is_all)
            item.draws = item.may_draw
            if item.draws:
                if sequence.wants_more:
                    sequence.draw(len(step.drawing))
                step.drawing.append(item)
            if item.is_all:
                self._take_out(sequence)
                sequence.status = Status.ENDING

    def extend(self, sequence: Sequence, forced_tokens: Iterable[int]) -> None:
        """Tokens behind the prompt, or behind the one that was drawn, which need no draw."""
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

    def clear_cache(self) -> None:
        """Forget all that could be found again."""
        for group in self.groups:
            group.pool.clear_cache()
        if self.states is not None:
            self.states.clear_cache()

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
            decodes_one = num_tokens == 1 or sequence.is_prompt_computed
            if self.states is not None:
                num_tokens = self.states.most_tokens(sequence, num_tokens)
            if decodes_one:
                decodes.append(sequence)
                num_tokens -= 1
            if num_tokens:
                prefills[sequence] = num_tokens
        return decodes, prefills

    def _pays(self, decodes: list[Sequence], prefills: dict[Sequence, int]) -> bool:
        """Whether more than decodes is worth a step. Where tokens were forced it may not be."""
        if not prefills.keys() <= set(decodes):
            return True
        return self.pace.pays_together(sum(prefills.values()), len(decodes))

    def _prefill_budget(self, num_decodes: int) -> int:
        room = self.max_num_batched_tokens - num_decodes
        return self.pace.max_prefill_tokens(num_decodes, room)

    def _make_room(self) -> bool:
        """Reserve the blocks of all that answer; whether any sequence was preempted for that."""
        was_enough = True
        while not self._tables.reserve(self.running):
            was_enough = False
            self._preempt(self._shares.first_to_go(self.running))
        return not was_enough

    def _admit(self) -> list[Sequence]:
        """Start waiting sequences, as long as the batch, the pool and the step have room."""
        refused: Counter[str] = Counter()
        started: list[Sequence] = []
        while len(refused) <= MOST_PIECES:
            sequence, victim = self._next(refused)
            if sequence is None or not self._tables.may_fit(sequence):
                break
            if victim is None and self._has_its_part(sequence, len(started)):
                refused[sequence.tenant] = NONE_OF_IT
                continue
            if victim is None and self.states is not None and not self.states.num_free:
                break
            found = match_prefix(sequence, self.groups, self.states)
            num_tokens = sequence.num_tokens - found.num_blocks * self.block_size
            if not self._would_prefill(sequence, num_tokens):
                refused[sequence.tenant] += 1
                continue
            if victim is not None:
                self._preempt(victim)
            if not self._start(sequence, found):
                break
            started.append(sequence)
        return started

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
            for _ in range(surplus(one, self.running, self.max_num_seqs, self.pace.decode_times)):
                own = [other for other in self.running if other.tenant == one.tenant]
                self._preempt(self._shares.first_to_go(own))

    def _has_its_part(self, sequence: Sequence, num_admitted: int) -> bool:
        if not self._shares.has_several_tenants:
            return num_admitted > 0 and self._num_steps_alone < STEPS_TILL_ALONE
        wanted = 1 + sum(other.tenant == sequence.tenant for other in self.running)
        return wanted > most_places(
            sequence, self.running, self.max_num_seqs, self.pace.decode_times, wanted
        )

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

    def _start(self, sequence: Sequence, found: PrefixMatch) -> bool:
        """Run a waiting sequence that begins with ``found``, if there are all other blocks."""
        if shortage := self._tables.shortage(sequence, found):
            sequence.awaited_gains = shortage
            return False
        self._shares.start(sequence)
        sequence.status = Status.RUNNING
        sequence.num_starts += 1
        insort(self.running, sequence, key=lambda running: running.order)
        if sequence.counts_prefix_hit:
            sequence.prefix_miss = why_no_more(sequence, found, self.groups, self.states)
        self._tables.attach_prefix(sequence, found)
        if self.states is not None:
            self.states.start(sequence, found.num_blocks, found.num_known * self.block_size)
        self._count_prefix_hit(sequence)
        was_enough = self._tables.reserve([sequence])
        assert was_enough, "a sequence was started without its blocks"
        return True

    def _count_prefix_hit(self, sequence: Sequence) -> None:
        if sequence.counts_prefix_hit:
            sequence.counts_prefix_hit = False
            num_found = sequence.num_computed_tokens
            sequence.num_cached_tokens = min(num_found, sequence.num_prompt_tokens)
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
        if self.states is not None:
            self.states.free(sequence)

    def _enqueue(self, sequence: Sequence) -> None:
        sequence.status = Status.WAITING
        self._shares.add_waiting(sequence)

    def check_integrity(self) -> None:
        """Raises ``AssertionError`` when the bookkeeping contradicts itself."""
        self._tables.check_integrity(self.running)
        if self.states is not None:
            self.states.check_integrity(self.running)
            held = [sequence.state is not None for sequence in self.running]
            assert all(held), "a sequence runs without a slot"
        assert len(self.running) <= self.max_num_seqs, f"{len(self.running)} sequences run"
        assert self.running == sorted(self.running, key=lambda sequence: sequence.order)
        self._shares.check_integrity(self.running)
        for sequence in self.running:
            assert sequence.status is Status.RUNNING
        for sequence in self.waiting:
            assert sequence.status is Status.WAITING
            assert not sequence.block_tables, "a waiting sequence holds blocks"
            assert sequence.state is None, "a waiting sequence holds a slot"


def _all(sequence: Sequence, num_tokens: int) -> int:
    """The prompts' blocks were reserved when they began to run."""
    return num_tokens
