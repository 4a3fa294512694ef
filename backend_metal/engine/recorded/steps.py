"""Steps of few tokens as recordings: one launch each, however many kernels a model takes."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import mlx.core as mx

from backend_metal.attention.kv_cache import GroupedMetadata, KVCachePool
from backend_metal.devices.recording import Recorder, Recording, being_recorded
from backend_metal.engine.batch import Batch
from backend_metal.engine.recorded.kept import KeptRecordings
from backend_metal.engine.recorded.shape import StepShape
from backend_metal.engine.schedule.int_buffer import Int32Array
from backend_metal.models.paged_model import ModelOutput

logger = logging.getLogger(__name__)

MOST_FAILURES = 3
"""Of one kind, in a row: one may be an accident, such as memory that another thread took
meanwhile."""


class Model(Protocol):
    def __call__(
        self,
        token_ids: mx.array,
        positions: mx.array,
        metadata: GroupedMetadata,
        logit_rows: mx.array,
        pool: KVCachePool,
    ) -> ModelOutput: ...


class RecordedSteps:
    def __init__(
        self,
        model: Model,
        pool: KVCachePool,
        recorder: Recorder,
        fill_in: Callable[[mx.array, mx.array], mx.array],
        max_num_seqs: int,
    ) -> None:
        self._model = model
        self._pool = pool
        self._recorder = recorder
        self._fill_in = fill_in
        self._max_num_seqs = max_num_seqs
        self._kept = KeptRecordings()
        self._num_failures = {"decodes": 0, "chunks": 0}
        self._nothing_drawn = mx.zeros(0, mx.int32)
        mx.eval(self._nothing_drawn)

    @property
    def num_made(self) -> int:
        """So far."""
        return self._kept.num_made

    def would_record(self, shape: StepShape) -> bool:
        """Whether ``forward`` would take as long as tens of steps, since there is none like it."""
        return shape not in self._kept and self._kept.has_room(shape)

    def forward(self, shape: StepShape, batch: Batch, drawn: mx.array | None) -> mx.array | None:
        """Logits of the last token of every sequence, to be used before the next step; None where
        there is no recording to be had. ``shape``: the batch's."""
        recording = self._kept.get(shape)
        if recording is None and not self._kept.has_room(shape):
            return None
        ints = shape.pack(batch)
        newest = self._nothing_drawn if drawn is None else drawn
        recording = recording or self._record(shape, ints, newest)
        if recording is None:
            return None
        return recording.replay(ints, newest)[: batch.num_seqs]

    def shape_of(self, batch: Batch) -> StepShape | None:
        """None: it can't be recorded."""
        shape = StepShape.of(batch, self._max_num_seqs)
        if shape is None or self._num_failures[_kind(shape)] >= MOST_FAILURES:
            return None
        return shape

    def reset(self) -> None:
        """Before the caches are others: recordings write those that there were."""
        self._kept.clear()

    def _record(self, shape: StepShape, ints: Int32Array, newest: mx.array) -> Recording | None:
        kind = _kind(shape)

        def forward(ints: mx.array, drawn: mx.array) -> mx.array:
            token_ids, positions, metadata, logit_rows = shape.unpack(ints)
            token_ids = self._fill_in(token_ids, drawn)
            with being_recorded():
                return self._model(token_ids, positions, metadata, logit_rows, self._pool).logits

        before = self._pool.evaluation_roots()
        try:
            recording = self._recorder(forward, ints, newest, self._max_num_seqs)
        except RuntimeError as error:
            # What a model does may be nothing that can be recorded; it runs as any other step then.
            self._pool.rebind(before)
            self._num_failures[kind] += 1
            if self._num_failures[kind] < MOST_FAILURES:
                logger.info("a step is not recorded this time: %s", error)
            else:
                logger.warning("steps of %s are not recorded, and slower: %s", kind, error)
            return None
        self._num_failures[kind] = 0
        logger.info("recorded a step of %d sequences, %d tokens", shape.num_seqs, shape.num_tokens)
        self._kept.add(shape, recording)
        return recording


def _kind(shape: StepShape) -> str:
    return "decodes" if shape.decodes else "chunks"
