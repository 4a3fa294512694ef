"""Runs steps on the device: each is one lazy graph from token ids to drawn tokens, submitted in two
parts, so that the device has work while the host sees to what the step before it has drawn."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

import mlx.core as mx
import numpy as np

from backend_metal import native
from backend_metal.attention.kv_cache import AttentionMetadata, KVCachePool
from backend_metal.devices.base import Device
from backend_metal.engine.batch import Batch
from backend_metal.engine.batch_builder import BatchBuilder
from backend_metal.engine.draws import PromptReader, StepDraws
from backend_metal.engine.grammar.masks import FilledMasks, HeldRow, MaskFiller
from backend_metal.engine.grammar.matcher_pool import MatcherPool
from backend_metal.engine.recorded.repeated import RepeatedModel, widened
from backend_metal.engine.recorded.shape import StepShape
from backend_metal.engine.recorded.steps import RecordedSteps
from backend_metal.engine.sampling.choice import choose_draw
from backend_metal.engine.sampling.masking import Masks
from backend_metal.engine.sampling.sampler import sample
from backend_metal.engine.sampling_rows import SamplingRows
from backend_metal.engine.schedule.int_buffer import Int32Array
from backend_metal.engine.schedule.step import ScheduledSequence, Step
from backend_metal.engine.step_clock import StepClock
from backend_metal.models.paged_model import ModelOutput, PagedModel
from backend_metal.native import MakeArray
from backend_metal.recurrent import StateMetadata, StatePool, StepStates

logger = logging.getLogger(__name__)

NOTHING_DRAWN = np.zeros(0, np.int32)

PART_AHEAD = 0.5
"""Of a model's layers, which are submitted before the tokens of the step before are read. MLX lets
only so much wait for a device and then makes who submits more wait, too: with all layers ahead, the
tokens of one step would be read at the end of the next."""
PARTS_AHEAD = 4
"""In so many parts where a step is long: the device has the first of them while the host still
builds the graph of the others."""
LONG_STEP = 2048
"""Tokens. With fewer the device is hardly slower than the host, whom each part costs a quarter of a
millisecond."""


class ModelRunner:
    def __init__(
        self,
        model: PagedModel,
        pool: KVCachePool,
        clock: StepClock,
        matchers: MatcherPool,
        recorded: RecordedSteps | None,
        states: StatePool | None,
        repeated: RepeatedModel | None,
        device: Device,
        make_array: MakeArray,
        fill_in: Callable[[mx.array, mx.array], mx.array],
    ) -> None:
        """``recorded``: where the device can have steps recorded. ``states``: of a model with
        recurrent layers. ``repeated``: ``model``, where graphs of decode steps can be repeated.
        ``device``: it draws."""
        self.model = model
        self.pool = pool
        self._states = states
        self._batches = BatchBuilder(
            pool.block_size, pool.groups, origin_multiple=pool.origin_multiple
        )
        self._recorded = recorded
        self._repeated = repeated
        self._make_array = make_array
        self._fill_in = fill_in
        self._filler = MaskFiller(matchers)
        self._filled: FilledMasks | None = None
        self._masks: Masks | None = None
        """Of what was filled last, for what was made of them to serve again."""
        self.rows = SamplingRows(model.vocab_size)
        self.draw = choose_draw(model.vocab_size, model.dtype, device)
        self.clock = clock
        self.records_decodes = recorded is not None
        self.holds_up = mx.default_device() == mx.Device(mx.cpu)

    def forward(self, step: Step, drawn: mx.array | None) -> ModelForward | DeferredForward:
        batch = self._batches.build(step)
        recorded = self._recorded if step.only_draws else None
        shape = recorded.shape_of(batch) if recorded else None
        if recorded is None or shape is None:
            return self._forward(step, batch, drawn)
        run = partial(self._forward_recorded, recorded, shape, step, batch, drawn)
        if drawn is not None and recorded.would_record(shape):
            return DeferredForward(run)
        return run()

    def _forward_recorded(
        self,
        recorded: RecordedSteps,
        shape: StepShape,
        step: Step,
        batch: Batch,
        drawn: mx.array | None,
    ) -> ModelForward:
        made = recorded.num_made
        logits = recorded.forward(shape, batch, drawn)
        step.is_typical = recorded.num_made == made
        if logits is None:
            return self._forward(step, batch, drawn)
        logits = _of_ends(step, logits)
        self.clock.lap("build")
        self.submit(logits, num_layers=0)
        return ModelForward(self, step, logits, is_whole=True)

    def _forward(self, step: Step, batch: Batch, drawn: mx.array | None) -> ModelForward:
        repeated = self._repeated if step.decodes_alone else None
        goes_ahead = self.pool.writes_in_place and (
            self._states is None or self._states.writes_in_place
        )
        num_ahead = max(1, round(self.pool.num_layers * PART_AHEAD))
        in_parts = goes_ahead and step.num_tokens >= LONG_STEP and not self.holds_up
        on_layer = partial(self._submit_part, num_ahead) if in_parts else None
        output = self._build(batch, drawn, repeated, on_layer)
        _read(step, output)
        self.clock.lap("build")
        if goes_ahead:
            self.submit(num_layers=num_ahead)
        # Of no rows the head is not to be computed: devices refuse some products without any.
        computed = output.logits if len(batch.logit_rows) else output.states
        return ModelForward(self, step, computed, is_whole=False)

    def fill_masks(self, held: list[HeldRow]) -> Masks:
        filled = self._filler.fill(held, self.model.vocab_size)
        if filled is not self._filled:
            self._filled = filled
            self._masks = Masks(filled.rows, filled.words)
        assert self._masks is not None, "nothing was filled"
        return self._masks

    def submit(self, *arrays: mx.array, num_layers: int | None = None) -> None:
        """Have the device compute ``arrays`` and the first layers, all by default."""
        mx.async_eval(  # type: ignore[no-untyped-call]
            arrays,
            self.pool.evaluation_roots(num_layers),
            self._states.evaluation_roots() if self._states and num_layers is None else [],
        )
        self.clock.lap("submit")

    def _submit_part(self, num_ahead: int, num_built: int) -> None:
        """Where ``num_built`` layers are a part of those that go ahead."""
        part = max(1, num_ahead // PARTS_AHEAD)
        if 0 < num_built < num_ahead and num_built % part == 0:
            self.clock.lap("build")
            self.submit(num_layers=num_built)

    def reset(self) -> None:
        try:
            mx.synchronize()
        except RuntimeError as error:
            # Of a step behind one that has failed, which is why the cache is reset.
            logger.info("what was under way failed, too: %s", error)
        native.forget_lost_tasks()
        if self._recorded is not None:
            self._recorded.reset()
        if self._repeated is not None:
            self._repeated.reset()
        self.pool.reset()
        if self._states is not None:
            self._states.reset()
        self.rows.clear()

    def _build(
        self,
        batch: Batch,
        drawn: mx.array | None,
        repeated: RepeatedModel | None,
        on_layer: Callable[[int], None] | None,
    ) -> ModelOutput:
        wide = _as_they_are if repeated is None else widened
        make_array = self._make_array
        cu_seqlens_q = make_array(batch.cu_seqlens_q)
        metadata = []
        for group in batch.groups:
            decodes, prefills = _phases(
                batch.cu_seqlens_q if group.cu_seqlens_q is None else group.cu_seqlens_q
            )
            own = cu_seqlens_q if group.cu_seqlens_q is None else make_array(group.cu_seqlens_q)
            metadata.append(
                AttentionMetadata(
                    slot_mapping=make_array(group.slot_mapping),
                    block_tables=make_array(wide(group.block_tables)),
                    seq_lens=make_array(group.seq_lens),
                    cu_seqlens_q=own,
                    decodes=decodes,
                    prefills=prefills,
                )
            )
        token_ids = self._token_ids(batch, drawn)
        states = None
        if self._states is not None:
            where = StateMetadata.of(
                batch.read_slots,
                batch.write_slots,
                batch.cu_seqlens_q,
                make_array=make_array,
            )
            states = StepStates(self._states, where)
        positions, logit_rows = make_array(batch.positions), make_array(batch.logit_rows)
        if repeated is not None:
            return repeated(token_ids, positions, metadata, logit_rows, self.pool, states)
        return self.model(token_ids, positions, metadata, logit_rows, self.pool, states, on_layer)

    def _token_ids(self, batch: Batch, drawn: mx.array | None) -> mx.array:
        """``drawn``: by the step before."""
        if drawn is not None and batch.is_what_was_drawn(drawn.size):
            return drawn
        token_ids: mx.array = self._make_array(batch.token_ids)
        if batch.has_pending:
            assert drawn is not None, "a token is pending that no step has drawn"
            token_ids = self._fill_in(token_ids, drawn)
        return token_ids


class DeferredForward:
    """A step that is recorded first, while nobody waits for tokens of the step before it."""

    holds_up = True

    def __init__(self, forward: Callable[[], ModelForward]) -> None:
        self._forward = forward

    def sample(self) -> StepDraws:
        return self._forward().sample()


class ModelForward:
    holds_up = False

    def __init__(
        self, runner: ModelRunner, step: Step, logits: mx.array, *, is_whole: bool
    ) -> None:
        """``logits``: the states where none are wanted. ``is_whole``: all of it is submitted."""
        self._is_whole = is_whole
        self._runner = runner
        self._step = step
        self._logits = logits

    def sample(self) -> StepDraws:
        """Once: what the model has computed is given up."""
        step, logits = self._step, self._logits
        del self._logits
        drawing, read = step.drawing, step.readouts
        reader = PromptReader(step.reading, logits[step.num_ends :]) if step.reading else None
        rows = self._runner.rows.options(drawing)
        sampled = None
        if rows:
            logits = _drawn_from(step, logits)
            masks = self._fill_masks(logits, drawing)
            batch = self._runner.rows.batch(drawing, rows, masks)
            sampled = sample(logits, batch, self._runner.draw)
        made = [array for readout in read for array in readout.arrays]
        if not (rows or reader):
            # Nothing else that the step computes says when it is done.
            made.append(logits)
        draws = StepDraws(rows, sampled, reader, made)
        self._runner.clock.lap("build")
        self._runner.submit(*draws.arrays, num_layers=0 if self._is_whole else None)
        return draws

    def _fill_masks(self, logits: mx.array, drawing: list[ScheduledSequence]) -> Masks | None:
        held = [
            HeldRow(
                row,
                sequence.guide,
                sequence.restrictions,
                NOTHING_DRAWN if sequence.restrictions is None else _output(item),
            )
            for row, item in enumerate(drawing)
            if (sequence := item.sequence).restrictions is not None
            or (sequence.guide is not None and sequence.guide.restricts)
        ]
        if not held:
            return None
        self._runner.clock.lap("build")
        if not self._is_whole and any(one.free_mask is None for one in held):
            # Filling takes a while, in which the device is to have work.
            self._runner.submit(logits)
        masks = self._runner.fill_masks(held)
        self._runner.clock.lap("mask")
        return masks


def _as_they_are(block_tables: Int32Array) -> Int32Array:
    return block_tables


def _read(step: Step, output: ModelOutput) -> None:
    """Have readouts take what is theirs of a step."""
    first_state, logit_row = 0, 0
    for item in step.scheduled:
        readout = item.sequence.readout
        if readout is not None and not readout.reads_logits:
            readout.add(output.states[first_state : first_state + item.num_tokens], item.start)
        elif readout is not None and item.has_logits:
            readout.add(output.logits[logit_row], item.start)
        first_state += item.num_tokens
        logit_row += item.has_logits


def _phases(cu_seqlens_q: Int32Array) -> tuple[bool, bool]:
    """Whether every sequence has one token, and whether every one has more. None has fewer."""
    if cu_seqlens_q[-1] == len(cu_seqlens_q) - 1:
        return True, False
    return False, bool((np.diff(cu_seqlens_q) > 1).all())


def _of_ends(step: Step, logits: mx.array) -> mx.array:
    """Of the rows of all sequences, those that are wanted; all where none is."""
    if 0 < step.num_ends < len(step.scheduled):
        rows = [row for row, item in enumerate(step.scheduled) if item.has_logits]
        return logits[mx.array(rows, mx.int32)]
    return logits


def _drawn_from(step: Step, logits: mx.array) -> mx.array:
    """Of the rows of sequences that end, which are the first of ``logits``, those that draw."""
    num_rows = len(step.drawing)
    if num_rows < step.num_ends:
        ends = [item for item in step.scheduled if item.has_logits]
        rows = [row for row, item in enumerate(ends) if item.draws]
        return logits[mx.array(rows, mx.int32)]
    return logits if num_rows == logits.shape[0] else logits[:num_rows]


def _output(item: ScheduledSequence) -> Int32Array:
    return item.sequence.token_range(item.sequence.num_prompt_tokens, item.stop)
