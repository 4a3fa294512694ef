"""What a packed step hands to recurrent modules of an mlx-lm model in place of their caches.

Such a module takes a batch of sequences of one length, and keeps what it carries from token to
token in an ``ArraysCache``. Packed tokens are neither. Where kernels of ours update all that it
keeps, it runs on them as they are (``recurrent_kernels.py``). Else it is called once for all
sequences that have one token to go on with, and once for every other one, each time with a cache of
the states that the step's metadata points at. Nothing in the module changes then, and this is what
the kernels are held to.
"""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
from mlx_lm.models.cache import ArraysCache

from backend_metal.models.recurrent_kernels import (
    PackedStates,
    RecordingOperators,
    StateOperators,
    reach_kernels,
)
from backend_metal.recurrent import RecurrentSpec, StateArray, StepStates

Call = Callable[[mx.array, ArraysCache | PackedStates], mx.array]
"""A recurrent module on ``[batch, length, size]``, which it gives back."""


class RecurrentLayerCache(ABC):
    """One recurrent layer's cache during one forward."""

    def make_mask(self, N: int) -> mx.array | None:  # noqa: N803 (mlx-lm's name)
        """No token is padding."""
        return None

    @abstractmethod
    def run(self, module: nn.Module, call: Call, x: mx.array) -> mx.array:
        """``call``, which is ``module``, on the packed tokens ``x``, ``[num_tokens, size]``, and so
        the result."""


class PooledStateCache(RecurrentLayerCache):
    """States live in a pool."""

    def __init__(self, states: StepStates, layer: int) -> None:
        self._states = states
        self._pool = states.pool
        self._metadata = states.metadata
        self._layer = layer

    def run(self, module: nn.Module, call: Call, x: mx.array) -> mx.array:
        if not self._pool.has_kernels(self._layer):
            return self._run_apart(call, x)
        arrays = self._pool.specs[self._layer].arrays
        return _run_packed(call, x, arrays, _PooledOperators(self._states, self._layer))

    def _run_apart(self, call: Call, x: mx.array) -> mx.array:
        # On the host already: a step's metadata is made there.
        reads = np.asarray(self._metadata.read_slots)
        borders = np.asarray(self._metadata.segments)
        goes_on, steps = reads >= 0, np.diff(borders) == 1
        together = np.flatnonzero(goes_on & steps)
        alone = np.flatnonzero(~(goes_on & steps))
        batches = [together] if together.size else []
        batches += [np.array([seq]) for seq in alone]
        rows = [np.arange(borders[seqs[0]], borders[seqs[-1] + 1]) for seqs in batches]
        if together.size:
            rows[0] = borders[together]
        out = mx.concatenate(
            [
                self._run(call, x[mx.array(tokens)].reshape(len(seqs), -1, x.shape[1]), seqs)
                for seqs, tokens in zip(batches, rows, strict=True)
            ]
        )
        order = np.concatenate(rows)
        return out if (np.diff(order) > 0).all() else out[mx.array(np.argsort(order))]

    def _run(self, call: Call, x: mx.array, seqs: np.ndarray) -> mx.array:
        """Of sequences that all begin or all go on: ``[tokens, size]``."""
        spec = self._pool.specs[self._layer]
        which = mx.array(seqs)
        cache = ArraysCache(len(spec.arrays))
        if np.asarray(self._metadata.read_slots)[seqs[0]] >= 0:
            # Some modules treat the first token of a sequence in a way of its own, and know it by
            # there being no state.
            cache.cache = self._pool.read(self._layer, self._metadata.read_slots[which])
        out = call(x, cache)
        self._pool.write(self._layer, self._metadata.write_slots[which], cache.cache)
        return out.flatten(0, 1)


class RecordingStateCache(RecurrentLayerCache):
    """Learns what a layer keeps; the graph that it is traced in is never evaluated."""

    def __init__(self, num_arrays: int) -> None:
        self._num_arrays = num_arrays
        self.recorded: list[RecurrentSpec] = []

    def run(self, module: nn.Module, call: Call, x: mx.array) -> mx.array:
        cache = ArraysCache(self._num_arrays)
        out = call(x[None], cache)
        arrays = tuple(StateArray(tuple(kept.shape[1:]), kept.dtype) for kept in cache.cache)
        fits = reach_kernels(module, self._num_arrays)
        if fits:
            operators = RecordingOperators()
            _run_packed(call, x, arrays, operators)
            if operators.recorded != dict(enumerate(arrays)):
                raise ValueError(
                    f"{type(module).__name__} keeps {arrays}, and hands {operators.recorded} on"
                )
        self.recorded.append(RecurrentSpec(arrays, fits))
        return out[0]


class _PooledOperators(StateOperators):
    def __init__(self, states: StepStates, layer: int) -> None:
        self._pool, self._metadata = states.pool, states.metadata
        self._layer = layer

    def causal_conv(
        self, array: int, x: mx.array, weight: mx.array, bias: mx.array | None
    ) -> mx.array:
        return self._pool.causal_conv(self._layer, array, x, weight, bias, self._metadata)

    def linear_attention(
        self,
        array: int,
        q: mx.array,
        k: mx.array,
        v: mx.array,
        gates: mx.array,
        betas: mx.array,
        *,
        delta_rule: bool,
    ) -> mx.array:
        return self._pool.linear_attention(
            self._layer, array, q, k, v, gates, betas, self._metadata, delta_rule=delta_rule
        )


def _run_packed(
    call: Call, x: mx.array, arrays: Sequence[StateArray], operators: StateOperators
) -> mx.array:
    states = PackedStates(arrays, operators)
    with states.in_use():
        return call(x[None], states)[0]


class _RunsPacked:
    """Mixed into a recurrent module's class, so that the parameter tree stays as it is."""

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array:
        module: Any = super()
        signature = _signature(type(self))  # type: ignore[arg-type]
        given = signature.bind(self, *args, **kwargs).arguments
        cache = given.get("cache")
        if not isinstance(cache, RecurrentLayerCache):
            out: mx.array = module.__call__(*args, **kwargs)
            return out
        _, name, *rest = given
        options = {key: given[key] for key in rest if key not in ("cache", "mask")}
        if "mask" in given:
            options["mask"] = None

        def call(x: mx.array, cache: ArraysCache | PackedStates) -> mx.array:
            part: mx.array = module.__call__(**{name: x, "cache": cache}, **options)
            return part

        return cache.run(self, call, given[name].squeeze(1))[:, None]


@cache
def _signature(cls: type) -> inspect.Signature:
    """Of the module's own ``__call__``, behind the mixin's."""
    return inspect.signature(cls.__bases__[1].__call__)


def pack_recurrent(model: nn.Module, name: str) -> None:
    """Let the modules that the layers of ``model`` call ``name`` run on packed tokens, those of
    them that keep anything. Idempotent."""
    for path, module in model.named_modules():
        cls = type(module)
        if path.rpartition(".")[2] != name or issubclass(cls, _RunsPacked):
            continue
        if "cache" in inspect.signature(cls.__call__).parameters:
            module.__class__ = _packed_class(cls)  # type: ignore[arg-type]


@cache
def _packed_class(cls: type[nn.Module]) -> type[nn.Module]:
    return type(cls.__name__, (_RunsPacked, cls), {})
