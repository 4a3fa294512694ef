"""A model whose graph is built once for each shape that its steps have, and repeated from then on.

To build it in Python takes as long at every step, and where a step is short that is much of it: of
a small model on a CPU a seventh. What is repeated is the same graph node by node, so that results
have the same bits, and it is submitted as any other.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import mlx.core as mx
import numpy as np

from backend_metal.attention.kv_cache import AttentionMetadata, GroupedMetadata, KVCachePool
from backend_metal.devices.recording import RepeatedGraph
from backend_metal.engine.recorded.shape import table_width
from backend_metal.engine.schedule.int_buffer import Int32Array
from backend_metal.models.paged_model import ModelOutput, PagedModel
from backend_metal.recurrent import StatePool, StepStates

logger = logging.getLogger(__name__)

MOST_GRAPHS = 64
"""Each takes a few hundred bytes a node. What was not repeated for longest goes."""


@dataclass(frozen=True)
class _Inputs:
    """All that a model is given of a step."""

    token_ids: mx.array
    positions: mx.array
    logit_rows: mx.array
    metadata: GroupedMetadata
    states: StepStates | None

    @property
    def arrays(self) -> list[mx.array]:
        arrays = [self.token_ids, self.positions, self.logit_rows]
        for group in self.metadata:
            arrays += group.arrays
        if self.states is not None:
            where = self.states.metadata
            arrays += [where.read_slots, where.write_slots, where.cu_seqlens_q]
        return arrays

    @property
    def known(self) -> Any:
        """What the host reads of it while it builds a graph."""
        if self.states is None:
            return None
        return self.states.metadata.segments, self.states.metadata.begins

    def of(self, arrays: Iterator[mx.array]) -> _Inputs:
        """The same with other arrays, in their order."""
        token_ids, positions, logit_rows = next(arrays), next(arrays), next(arrays)
        metadata = [
            AttentionMetadata(
                next(arrays), next(arrays), next(arrays), next(arrays), decodes=one.decodes
            )
            for one in self.metadata
        ]
        states = self.states
        if states is not None:
            where = replace(
                states.metadata,
                read_slots=next(arrays),
                write_slots=next(arrays),
                cu_seqlens_q=next(arrays),
            )
            states = replace(states, metadata=where)
        return _Inputs(token_ids, positions, logit_rows, metadata, states)


class RepeatedModel:
    def __init__(self, model: PagedModel) -> None:
        self._model = model
        self._graphs: OrderedDict[Any, tuple[RepeatedGraph, int]] = OrderedDict()
        """And how often each of them attends."""
        self._can_repeat = True
        self._stream = mx.default_stream(mx.default_device())

    def __call__(
        self,
        token_ids: mx.array,
        positions: mx.array,
        metadata: GroupedMetadata,
        logit_rows: mx.array,
        pool: KVCachePool,
        states: StepStates | None = None,
    ) -> ModelOutput:
        """As ``PagedModel`` does."""
        if self._can_repeat:
            inputs = _Inputs(token_ids, positions, logit_rows, metadata, states)
            try:
                return self._repeat(inputs, _Memory(pool, None if states is None else states.pool))
            except RuntimeError as error:
                # A model may look at what it is given, and at first there is nothing to be seen.
                logger.warning("graphs of decode steps are built each time: %s", error)
                self._can_repeat = False
                self.reset()
        return self._model(token_ids, positions, metadata, logit_rows, pool, states)

    def reset(self) -> None:
        """After a step that failed, which may have left what all steps share without data."""
        self._graphs.clear()

    def _repeat(self, inputs: _Inputs, memory: _Memory) -> ModelOutput:
        stream = mx.default_stream(mx.default_device())
        if stream != self._stream:
            # Each thread has its own, and a graph's nodes run on that on which they were built.
            self.reset()
            self._stream = stream
        arrays, roots = inputs.arrays, memory.roots()
        shape = tuple(array.shape for array in arrays), inputs.known
        found = self._graphs.get(shape)
        if found is None:
            while len(self._graphs) >= MOST_GRAPHS:
                self._graphs.popitem(last=False)
            found = self._graphs[shape] = self._build(inputs, memory)
        else:
            self._graphs.move_to_end(shape)
            memory.pool.count_launches(found[1])
        logits, hidden, *written = found[0]([*arrays, *roots])
        memory.rebind(written)
        return ModelOutput(logits, hidden)

    def _build(self, inputs: _Inputs, memory: _Memory) -> tuple[RepeatedGraph, int]:
        before = memory.roots()
        num_launches = memory.pool.num_launches

        def build(arrays: list[mx.array]) -> list[mx.array]:
            own = inputs.of(iter(arrays))
            memory.rebind(arrays[-len(before) :])
            output = self._model(
                own.token_ids,
                own.positions,
                own.metadata,
                own.logit_rows,
                memory.pool,
                own.states,
            )
            return [*output, *memory.roots()]

        try:
            graph = RepeatedGraph(build, [*inputs.arrays, *before])
        finally:
            memory.rebind(before)
        return graph, memory.pool.num_launches - num_launches


@dataclass(frozen=True)
class _Memory:
    """What a model writes."""

    pool: KVCachePool
    states: StatePool | None

    def roots(self) -> list[mx.array]:
        """Not to be kept."""
        states = [] if self.states is None else self.states.evaluation_roots()
        return [*self.pool.evaluation_roots(), *states]

    def rebind(self, arrays: list[mx.array]) -> None:
        num_states = 0
        if self.states is not None:
            num_states = len(self.states.evaluation_roots())
            self.states.rebind(arrays[len(arrays) - num_states :])
        self.pool.rebind(arrays[: len(arrays) - num_states])


def widened(block_tables: Int32Array) -> Int32Array:
    """With blocks 0 for as many as longer sequences would have, for which one graph is to serve."""
    num_seqs, num_blocks = block_tables.shape
    tables = np.zeros((num_seqs, table_width(num_blocks)), np.int32)
    tables[:, :num_blocks] = block_tables
    return tables
