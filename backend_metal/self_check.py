"""Holds an attention path to ``reference.py`` on this machine, before it may serve anybody.

A short life of one KV cache, as the engine would run it: decode within one split, decode over
several, prefill, a mixed step that reads a shared prefix, copied blocks. Shapes, dtype and options
are the model's, so the kernels are those that it will run; windows and softcaps are cut to a size
that a small context can feel. Slots that nobody has written hold NaN.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np
import numpy.typing as npt

from backend_metal import native
from backend_metal.attention_paths import REFERENCE, AttentionPath
from backend_metal.kv_cache import LayerAttention

TOLERANCES = {mx.float32: 1e-5, mx.float16: 1e-3, mx.bfloat16: 8e-3}
"""Most RMS error over RMS of the reference, for each query head of each sequence."""

SHORT_WINDOW, SHORT_CONTEXT = 33, 45
LONG_WINDOW, LONG_CONTEXT = native.KEYS_PER_SPLIT + 5, native.KEYS_PER_SPLIT + 37
MOST_SOFTCAP = 2.0
"""Scores have a standard deviation of 1."""
BLOCK_COPIES = ([1, 2, 1], [0, 3, 2])
"""Sources and destinations; they overlap, and each destination gets what was there before."""

Floats = npt.NDArray[np.float32]
Caches = tuple[mx.array, mx.array]


class SelfCheckError(Exception):
    """What failed: the step, the model's shapes, and by how much or why."""


@dataclass
class _Sequence:
    table: npt.NDArray[np.int32]
    length: int
    """Tokens in the cache."""


@dataclass(frozen=True)
class _Step:
    name: str
    parts: tuple[tuple[str, int], ...]
    """Sequences, and how many tokens each of them adds."""
    window: int | None


def check_path(
    path: AttentionPath, layers: Iterable[LayerAttention], block_size: int, dtype: mx.Dtype
) -> None:
    """Raise ``SelfCheckError`` unless ``path`` agrees with the reference on every kind of layer."""
    for layer in dict.fromkeys(layers):
        _LayerCheck(path, layer, block_size, dtype).run()


class _LayerCheck:
    def __init__(
        self, path: AttentionPath, layer: LayerAttention, block_size: int, dtype: mx.Dtype
    ) -> None:
        self._path = path
        self._layer = layer
        self._block_size = block_size
        self._dtype = dtype
        self._rng = np.random.default_rng(0)
        self._sequences, num_blocks = self._make_sequences()
        self._options = self._make_options()
        keys, values = self._make_caches(num_blocks)
        self._caches = self._array(keys), self._array(values)
        self._expected_caches = self._array(keys), self._array(values)

    def run(self) -> None:
        short, long = (
            None if self._layer.window is None else min(self._layer.window, most)
            for most in (SHORT_WINDOW, LONG_WINDOW)
        )
        for step in (
            _Step("decode", (("short", 1), ("new", 1)), short),
            _Step("decode over several splits", (("long", 1), ("short", 1)), long),
            _Step("prefill", (("prompt", 37), ("short", 20)), short),
            _Step("mixed step", (("long", 1), ("sharing", 21), ("prompt", 1), ("new", 9)), long),
        ):
            self._run_step(step)
        self._run_copies()

    def _run_step(self, step: _Step) -> None:
        arguments = self._arguments(step)
        options = self._options | {"window": step.window}
        try:
            out, *caches = self._path.scatter_paged_attention(
                **arguments, k_cache=self._caches[0], v_cache=self._caches[1], **options
            )
            mx.eval(out, caches)
        except Exception as error:
            raise self._failure(step.name, f"{type(error).__name__}: {error}") from error
        expected, *expected_caches = REFERENCE.scatter_paged_attention(
            **arguments,
            k_cache=self._expected_caches[0],
            v_cache=self._expected_caches[1],
            **options,
        )
        self._caches = caches[0], caches[1]
        self._expected_caches = expected_caches[0], expected_caches[1]
        self._compare_out(step, out, expected)
        self._compare_caches(step.name)

    def _run_copies(self) -> None:
        sources, destinations = (mx.array(blocks, mx.int32) for blocks in BLOCK_COPIES)
        try:
            copies = [
                self._path.copy_blocks(cache, sources, destinations) for cache in self._caches
            ]
            mx.eval(copies)
        except Exception as error:
            raise self._failure("block copy", f"{type(error).__name__}: {error}") from error
        self._caches = copies[0], copies[1]
        expected = [
            REFERENCE.copy_blocks(cache, sources, destinations) for cache in self._expected_caches
        ]
        self._expected_caches = expected[0], expected[1]
        self._compare_caches("block copy")

    def _compare_out(self, step: _Step, out: mx.array, expected: mx.array) -> None:
        if (out.shape, out.dtype) != (expected.shape, expected.dtype):
            raise self._failure(
                step.name,
                f"{out.dtype} {out.shape} instead of {expected.dtype} {expected.shape}",
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
        pairs = zip(("k_cache", "v_cache"), self._caches, self._expected_caches, strict=True)
        for name, cache, expected in pairs:
            if not mx.array_equal(cache, expected, equal_nan=True).item():
                differs = (cache != expected) & ~(mx.isnan(cache) & mx.isnan(expected))
                slots = np.flatnonzero(np.array(differs.any(axis=(2, 3))))
                raise self._failure(
                    step, f"{name} differs in {slots.size} slots, the first of them {slots[0]}"
                )

    def _failure(self, step: str, what: str) -> SelfCheckError:
        layer, spec = self._layer, self._layer.cache
        dtype = str(self._dtype).rpartition(".")[2]
        return SelfCheckError(
            f"{step} ({dtype}, {layer.num_q_heads} query heads over {spec.num_kv_heads}, head dims "
            f"{spec.head_dim} and {spec.head_dim_v}, blocks of {self._block_size}, window "
            f"{layer.window}, softcap {layer.softcap}, sinks {layer.has_sinks}): {what}"
        )

    def _make_sequences(self) -> tuple[dict[str, _Sequence], int]:
        """Tables over shuffled blocks; and how many blocks there are, some of them nobody's."""
        size = self._block_size
        most_tokens = {
            "short": SHORT_CONTEXT + 22,
            "long": LONG_CONTEXT + 2,
            "prompt": 38,
            "new": 10,
            "sharing": 21,
        }
        widths = {name: -(-tokens // size) for name, tokens in most_tokens.items()}
        num_blocks = sum(widths.values()) + 4
        order = self._rng.permutation(num_blocks).astype(np.int32)
        tables = np.split(order, np.cumsum(list(widths.values())))
        sequences = {name: _Sequence(table, 0) for name, table in zip(widths, tables, strict=False)}
        sequences["short"].length = SHORT_CONTEXT
        sequences["long"].length = LONG_CONTEXT
        shared = native.KEYS_PER_SPLIT // size
        prefix, own = sequences["long"].table[:shared], sequences["sharing"].table
        sequences["sharing"] = _Sequence(np.concatenate([prefix, own]), shared * size)
        return sequences, num_blocks

    def _make_options(self) -> dict[str, Any]:
        layer = self._layer
        sinks = mx.array(self._normal(layer.num_q_heads)) if layer.has_sinks else None
        softcap = None if layer.softcap is None else min(layer.softcap, MOST_SOFTCAP)
        return {"scale": layer.scale, "softcap": softcap, "sinks": sinks}

    def _make_caches(self, num_blocks: int) -> tuple[Floats, Floats]:
        spec = self._layer.cache
        shape = (num_blocks, self._block_size, spec.num_kv_heads)
        keys = np.full((*shape, spec.head_dim), np.nan, np.float32)
        values = np.full((*shape, spec.head_dim_v), np.nan, np.float32)
        for name in ("short", "long"):
            sequence = self._sequences[name]
            slots = self._slots(sequence.table, 0, sequence.length)
            for cache in (keys, values):
                rows = cache.reshape(-1, *cache.shape[2:])
                rows[slots] = self._normal(len(slots), *cache.shape[2:])
        return keys, values

    def _arguments(self, step: _Step) -> dict[str, mx.array]:
        """The packed arrays of a step, which its sequences are longer by afterwards."""
        slots, lengths = [], []
        for name, num_tokens in step.parts:
            sequence = self._sequences[name]
            slots.append(self._slots(sequence.table, sequence.length, sequence.length + num_tokens))
            sequence.length += num_tokens
            lengths.append(sequence.length)
        width = -(-max(lengths) // self._block_size)
        tables = np.zeros((len(step.parts), width), np.int32)
        for row, (name, _) in zip(tables, step.parts, strict=True):
            table = self._sequences[name].table[:width]
            row[: len(table)] = table
        layer, spec = self._layer, self._layer.cache
        num_tokens = sum(count for _, count in step.parts)
        queries = self._normal(num_tokens, layer.num_q_heads, spec.head_dim)
        return {
            "q": self._array(queries / (layer.scale * spec.head_dim**0.5)),
            "k": self._array(self._normal(num_tokens, spec.num_kv_heads, spec.head_dim)),
            "v": self._array(self._normal(num_tokens, spec.num_kv_heads, spec.head_dim_v)),
            "slot_mapping": _ints(np.concatenate(slots)),
            "block_tables": _ints(tables),
            "seq_lens": _ints(lengths),
            "cu_seqlens_q": _ints(np.cumsum([0, *(count for _, count in step.parts)])),
        }

    def _slots(self, table: npt.NDArray[np.int32], start: int, end: int) -> npt.NDArray[np.int32]:
        positions = np.arange(start, end, dtype=np.int32)
        return table[positions // self._block_size] * self._block_size + (
            positions % self._block_size
        )

    def _normal(self, *shape: int) -> Floats:
        return self._rng.standard_normal(shape, np.float32)

    def _array(self, values: Floats) -> mx.array:
        return mx.array(values).astype(self._dtype)


def _rms(rows: Floats) -> Floats:
    """One for each head of ``[tokens, heads, dim]``."""
    means: Floats = np.mean(np.square(rows), axis=(0, 2))
    return np.sqrt(means)


def _ints(values: npt.NDArray[Any] | Sequence[int]) -> mx.array:
    return mx.array(np.asarray(values, np.int32))
