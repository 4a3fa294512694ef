"""Holds an attention path to ``reference.py`` on the host, before it may serve anybody.

A short life of one KV cache, as the engine would run it: first tokens, decode within one split and
over several, prefill, a mixed step that reads a shared prefix. Shapes, dtype and
options are the model's, so the kernels are those that it will run; windows and softcaps are cut to
a size that a small context can feel.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

import mlx.core as mx
import numpy as np

from backend_metal import native
from backend_metal.attention.kv_cache import LayerAttention
from backend_metal.attention.self_check_inputs import CheckInputs, Floats
from backend_metal.device import REFERENCE, Device

TOLERANCES = {mx.float32: 1e-5, mx.float16: 1e-3, mx.bfloat16: 8e-3}
"""Most RMS error over RMS of the reference, for each query head of each sequence."""
SHORT_WINDOW, LONG_WINDOW = 33, native.KEYS_PER_SPLIT + 5
LONGEST_WINDOW = 2 * native.KEYS_PER_SPLIT + 5
"""Longer than one split of a prefill: only such windows have several."""

T = TypeVar("T")


class SelfCheckError(Exception):
    """What failed: the step, the model's shapes, and by how much or why."""


@dataclass(frozen=True)
class _Step:
    name: str
    parts: tuple[tuple[str, int], ...]
    """Sequences, and how many tokens each of them adds."""
    most_window: int


STEPS = (
    _Step("first tokens", (("prompt", 21), ("new", 1)), SHORT_WINDOW),
    _Step("decode", (("short", 1), ("prompt", 1)), SHORT_WINDOW),
    _Step("decode over several splits", (("endless", 1),), LONG_WINDOW),
    _Step("prefill", (("short", 20), ("new", 9)), SHORT_WINDOW),
    _Step(
        "mixed step",
        (("long", 1), ("endless", 21), ("prompt", 1), ("bulk", 160)),
        LONGEST_WINDOW,
    ),
)
"""Between them they make a GPU's plan choose every kernel that it has for the layer: with one split
and with several, for decode, for prefill and for both."""


def check_path(
    path: Device, layers: Iterable[LayerAttention], block_size: int, dtype: mx.Dtype
) -> None:
    """Raise ``SelfCheckError`` unless ``path`` agrees with the reference on every kind of layer."""
    for layer in dict.fromkeys(one for model_layer in layers for one in model_layer.kernels):
        _LayerCheck(path, layer, block_size, dtype).run()


class _LayerCheck:
    def __init__(
        self, path: Device, layer: LayerAttention, block_size: int, dtype: mx.Dtype
    ) -> None:
        self._path = path
        self._layer = layer
        self._dtype = dtype
        self._block_size = block_size
        self._inputs = CheckInputs(layer, block_size, dtype)
        self._options = self._inputs.options()
        caches = self._inputs.caches()
        self._caches = [self._inputs.array(cache) for cache in caches]
        self._expected_caches = [self._inputs.array(cache) for cache in caches]

    def run(self) -> None:
        for step in STEPS:
            self._check_step(step)

    def _check_step(self, step: _Step) -> None:
        window = self._layer.window
        arguments = self._inputs.step(step.parts) | self._options
        arguments["window"] = None if window is None else min(window, step.most_window)

        lengths = [num_tokens for _, num_tokens in step.parts]

        def run(path: Device, caches: list[mx.array]) -> list[mx.array]:
            decodes, prefills = set(lengths) == {1}, min(lengths) > 1
            own = {**arguments, **path.phases(decodes=decodes, prefills=prefills)}
            if self._layer.cache.values_in_keys:
                return [*path.scatter_latent_attention(**own, k_cache=caches[0])]
            keys, values = caches
            return [*path.scatter_paged_attention(**own, k_cache=keys, v_cache=values)]

        out, *self._caches = self._evaluated(step.name, lambda: run(self._path, self._caches))
        # On the CPU: GPUs multiply float32 in TF32, of 10 bits, unless the process forbids it.
        with mx.stream(mx.cpu):
            expected, *self._expected_caches = run(REFERENCE, self._expected_caches)
        self._compare_out(step, out, expected)
        self._compare_caches(step.name)

    def _evaluated(self, step: str, run: Callable[[], T]) -> T:
        try:
            results = run()
            mx.eval(results)
        except Exception as error:
            raise self._failure(step, f"{type(error).__name__}: {error}") from error
        return results

    def _compare_out(self, step: _Step, out: mx.array, expected: mx.array) -> None:
        if (out.shape, out.dtype) != (expected.shape, expected.dtype):
            raise self._failure(
                step.name, f"{out.dtype} {out.shape}, not {expected.dtype} {expected.shape}"
            )
        actual, wanted = (np.array(array.astype(mx.float32)) for array in (out, expected))
        tolerance = TOLERANCES[self._dtype]
        ends = np.cumsum([num_tokens for _, num_tokens in step.parts])
        for (name, num_tokens), end in zip(step.parts, ends, strict=True):
            rows = slice(end - num_tokens, end)
            error = _rms(actual[rows] - wanted[rows]) / _rms(wanted[rows])
            # Written so that NaN fails too.
            if not (error <= tolerance).all():
                head = int(np.argmax(np.where(np.isnan(error), np.inf, error)))
                raise self._failure(
                    step.name,
                    f"{num_tokens} tokens of the {name} sequence, query head {head}: relative RMS "
                    f"{error[head]:.2g}, where {tolerance:g} is allowed",
                )

    def _compare_caches(self, step: str) -> None:
        pairs = zip(self._caches, self._expected_caches, strict=True)
        for name, (cache, expected) in zip(("k_cache", "v_cache"), pairs, strict=False):
            if not mx.array_equal(cache, expected, equal_nan=True).item():
                differs = (cache != expected) & ~(mx.isnan(cache) & mx.isnan(expected))
                slots = np.flatnonzero(np.array(differs.any(axis=(2, 3))))
                raise self._failure(
                    step, f"{name} differs in {slots.size} slots, the first of them {slots[0]}"
                )

    def _failure(self, step: str, what: str) -> SelfCheckError:
        layer, spec = self._layer, self._layer.cache
        in_keys = " in one array" if spec.values_in_keys else ""
        dtype = str(self._dtype).rpartition(".")[2]
        return SelfCheckError(
            f"{step} ({dtype}, {layer.num_q_heads} query heads over {spec.num_kv_heads}, head dims "
            f"{spec.head_dim} and {spec.head_dim_v}{in_keys}, blocks of {self._block_size}, window "
            f"{layer.window}, softcap {layer.softcap}, sinks {layer.has_sinks}): {what}"
        )


def _rms(rows: Floats) -> Floats:
    """One for each head of ``[tokens, heads, dim]``."""
    means: Floats = np.mean(np.square(rows), axis=(0, 2))
    return np.sqrt(means)
