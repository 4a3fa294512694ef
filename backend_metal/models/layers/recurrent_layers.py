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

from backend_metal.models.layers.recurrent_kernels import (
    PackedStates,
    RecordingOperators,
    StateOperators,
    reach_kernels,
)
from backend_metal.recurrent import RecurrentSpec, StateArray, StepStates

Arrays = tuple[mx.array, ...]
Call = Callable[[Arrays, ArraysCache | PackedStates], Arrays]
"""A recurrent module on what it is given of each token, ``[batch, length, ...]``, and so what it
gives back."""


class RecurrentLayerCache(ABC):
    """One recurrent layer's cache during one forward."""

    def make_mask(self, N: int) -> mx.array | None:  # noqa: N803 (mlx-lm's name)
        """No token is padding."""
        return None

    @abstractmethod
    def run(self, module: nn.Module, call: Call, inputs: Arrays) -> Arrays:
        """``call``, which is ``module``, on what it is given of packed tokens,
        ``[num_tokens, ...]``, and so the results."""


class GatheredStates(ArraysCache):  # type: ignore[misc]
    """The states of some sequences, copied for a call of a module that is run on these alone."""


class PooledStateCache(RecurrentLayerCache):
    """States live in a pool."""

    def __init__(self, states: StepStates, layer: int) -> None:
        self._states = states
        self._pool = states.pool
        self._metadata = states.metadata
        self._layer = layer

    def run(self, module: nn.Module, call: Call, inputs: Arrays) -> Arrays:
        if not self._pool.has_kernels(self._layer):
            return self._run_apart(call, inputs)
        arrays = self._pool.specs[self._layer].arrays
        return _run_packed(call, inputs, arrays, _PooledOperators(self._states, self._layer))

    def _run_apart(self, call: Call, inputs: Arrays) -> Arrays:
        borders = np.array(self._metadata.segments)
        goes_on, steps = ~np.array(self._metadata.begins), np.diff(borders) == 1
        together = np.flatnonzero(goes_on & steps)
        alone = np.flatnonzero(~(goes_on & steps))
        batches = [together] if together.size else []
        batches += [np.array([seq]) for seq in alone]
        rows = [np.arange(borders[seqs[0]], borders[seqs[-1] + 1]) for seqs in batches]
        if together.size:
            rows[0] = borders[together]
        parts = []
        for seqs, tokens in zip(batches, rows, strict=True):
            which = mx.array(tokens)
            own = (x[which].reshape(len(seqs), -1, *x.shape[1:]) for x in inputs)
            parts.append(self._run(call, tuple(own), seqs))
        outs = tuple(mx.concatenate(list(some)) for some in zip(*parts, strict=True))
        order = np.concatenate(rows)
        if (np.diff(order) > 0).all():
            return outs
        back = mx.array(np.argsort(order))
        return tuple(out[back] for out in outs)

    def _run(self, call: Call, inputs: Arrays, seqs: np.ndarray) -> Arrays:
        """Of sequences that all begin or all go on: ``[tokens, ...]``."""
        spec = self._pool.specs[self._layer]
        which = mx.array(seqs)
        cache = GatheredStates(len(spec.arrays))
        if not self._metadata.begins[seqs[0]]:
            # Some modules treat the first token of a sequence in a way of its own, and know it by
            # there being no state.
            cache.cache = self._pool.read(self._layer, self._metadata.read_slots[which])
        outs = call(inputs, cache)
        # Some begin a sum in the dtype of the model, which kernels and the pool have in float32.
        states = [
            state.astype(array.dtype) for state, array in zip(cache.cache, spec.arrays, strict=True)
        ]
        self._pool.write(self._layer, self._metadata.write_slots[which], states)
        return tuple(out.flatten(0, 1) for out in outs)


class RecordingStateCache(RecurrentLayerCache):
    """Learns what a layer keeps; the graph that it is traced in is never evaluated."""

    def __init__(self, num_arrays: int) -> None:
        self._num_arrays = num_arrays
        self.recorded: list[RecurrentSpec] = []

    def run(self, module: nn.Module, call: Call, inputs: Arrays) -> Arrays:
        cache = GatheredStates(self._num_arrays)
        outs = call(tuple(x[None] for x in inputs), cache)
        arrays = tuple(StateArray(tuple(kept.shape[1:]), kept.dtype) for kept in cache.cache)
        fits = reach_kernels(module, self._num_arrays)
        if fits:
            operators = RecordingOperators()
            _run_packed(call, inputs, arrays, operators)
            arrays = _kept_by(operators, arrays, type(module).__name__)
        self.recorded.append(RecurrentSpec(arrays, fits))
        return tuple(out[0] for out in outs)


def _kept_by(
    operators: RecordingOperators, arrays: tuple[StateArray, ...], name: str
) -> tuple[StateArray, ...]:
    """``arrays`` as the operators keep them: sums in float32, which some modules have in the dtype
    of the model."""
    kept = tuple(operators.recorded.get(number) for number in range(len(arrays)))
    for own, array in zip(kept, arrays, strict=True):
        if own is None or own.shape != array.shape or (own.is_inputs and own != array):
            raise ValueError(f"{name} keeps {arrays}, and hands {operators.recorded} on")
    return tuple(own for own in kept if own is not None)


class _PooledOperators(StateOperators):
    def __init__(self, states: StepStates, layer: int) -> None:
        self._pool, self._metadata = states.pool, states.metadata
        self._layer = layer

    def begins(self, num_tokens: int) -> mx.array:
        first = np.zeros(num_tokens, bool)
        first[np.array(self._metadata.segments[:-1])[np.array(self._metadata.begins)]] = True
        return mx.array(first)

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
        gates_are_rates: bool = False,
    ) -> mx.array:
        return self._pool.linear_attention(
            self._layer,
            array,
            q,
            k,
            v,
            gates,
            betas,
            self._metadata,
            delta_rule=delta_rule,
            gates_are_rates=gates_are_rates,
        )


def _run_packed(
    call: Call, inputs: Arrays, arrays: Sequence[StateArray], operators: StateOperators
) -> Arrays:
    states = PackedStates(arrays, operators)
    with states.in_use():
        outs = call(tuple(x[None] for x in inputs), states)
    return tuple(out[0] for out in outs)


class _RunsPacked:
    """Mixed into a recurrent module's class, so that the parameter tree stays as it is."""

    def __call__(self, *args: Any, **kwargs: Any) -> mx.array | Arrays:
        module: Any = super()
        signature = _signature(type(self))  # type: ignore[arg-type]
        given = signature.bind(self, *args, **kwargs).arguments
        cache = given.get("cache")
        if not isinstance(cache, RecurrentLayerCache):
            out: mx.array = module.__call__(*args, **kwargs)
            return out
        _, *names = (name for name in given if name not in ("cache", "mask"))
        of_tokens = {name: given[name] for name in names if isinstance(given[name], mx.array)}
        options = {name: given[name] for name in names if name not in of_tokens}
        if "mask" in given:
            options["mask"] = None

        def call(inputs: Arrays, cache: ArraysCache | PackedStates) -> Arrays:
            own = dict(zip(of_tokens, inputs, strict=True))
            part: mx.array | Arrays = module.__call__(**own, **options, cache=cache)
            return part if isinstance(part, tuple) else (part,)

        # Positions are one a token, and all else is of a batch of one-token sequences.
        inputs = (x.squeeze(1) if x.ndim > 1 else x for x in of_tokens.values())
        outs = tuple(out[:, None] for out in cache.run(self, call, tuple(inputs)))
        return outs[0] if len(outs) == 1 else outs


@cache
def _signature(cls: type) -> inspect.Signature:
    """Of the module's own ``__call__``, behind the mixin's."""
    return inspect.signature(cls.__bases__[1].__call__)


def pack_recurrent(model: nn.Module, name: str) -> None:
    """Let the modules that the layers of ``model`` call ``name``, or that are in a list of that
    name, run on packed tokens, those of them that keep anything. Idempotent."""
    for path, module in model.named_modules():
        cls = type(module)
        if _own_name(path) != name or issubclass(cls, _RunsPacked):
            continue
        if "cache" in inspect.signature(cls.__call__).parameters:
            module.__class__ = _packed_class(cls)  # type: ignore[arg-type]


def _own_name(path: str) -> str:
    return next((part for part in reversed(path.split(".")) if not part.isdigit()), "")


@cache
def _packed_class(cls: type[nn.Module]) -> type[nn.Module]:
    return type(cls.__name__, (_RunsPacked, cls), {})
