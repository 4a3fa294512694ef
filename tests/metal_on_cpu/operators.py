"""The attention operators on arrays, run by the shipped Metal kernels and dispatch code on the CPU.

Arguments are those of ``backend_metal.attention``, as NumPy arrays of any strides (float32,
float16, ``ml_dtypes.bfloat16``) or as arrays of MLX, and the results are of the kind of the first.
NumPy arguments are never changed; MLX caches are written in place, as on a GPU. Each call builds
the real lazy primitive, evaluates it, and leaves what was dispatched in ``last_launch()``.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import mlx.core as mx

from backend_metal import attention
from tests.metal_on_cpu.amplification import read_amplification
from tests.metal_on_cpu.arrays import Array, like, to_mlx
from tests.metal_on_cpu.engine_device import path
from tests.metal_on_cpu.host import (
    Dispatch,
    Launch,
    exact_allocations,
    execution,
    extension,
    take_launches,
)


@dataclass(frozen=True)
class OperatorLaunch:
    """What one call dispatched. ``kernel``, ``grid``, ``threadgroup`` (threads) and
    ``threadgroup_memory`` (bytes of arguments) are the first dispatch's."""

    launch: Launch
    arguments: dict[str, mx.array]
    options: dict[str, Any]

    @property
    def dispatches(self) -> tuple[Dispatch, ...]:
        return self.launch.dispatches

    @property
    def kernels(self) -> tuple[str, ...]:
        return self.launch.kernels

    @property
    def kernel(self) -> str:
        return self.dispatches[0].kernel

    @property
    def grid(self) -> tuple[int, int, int]:
        return self.dispatches[0].grid

    @property
    def threadgroup(self) -> tuple[int, int, int]:
        return self.dispatches[0].threadgroup

    @property
    def threadgroup_memory(self) -> int:
        return self.dispatches[0].threadgroup_memory

    @property
    def barriers(self) -> int:
        """Barriers that MLX's encoder puts between the dispatches."""
        return self.launch.barriers

    @cached_property
    def kv_read_amplification(self) -> float:
        """Distinct K/V bytes that each threadgroup loads to attend, summed over threadgroups, over
        the bytes of the K/V visible to any query, counted once a K/V head.

        Found by running the call again, with kernels that record their loads.
        """
        name = OPERATORS[self.launch.primitive]
        with execution(track_loads=True):
            launch = _evaluated(name, self.arguments, self.options)[1]
        return read_amplification(launch, self.arguments, self.options)


OPERATORS = {
    "ScatterPagedAttention": "scatter_paged_attention",
    "PagedAttention": "paged_attention",
    "ReshapeAndCache": "reshape_and_cache",
}

_last: list[OperatorLaunch] = []


def last_launch() -> OperatorLaunch:
    """What the latest call in this process dispatched; raises ``LookupError`` before the first."""
    if not _last:
        raise LookupError("no operator has been called yet")
    return _last[0]


def scatter_paged_attention(
    q: Array,
    k: Array,
    v: Array,
    k_cache: Array,
    v_cache: Array,
    slot_mapping: Array,
    block_tables: Array,
    seq_lens: Array,
    cu_seqlens_q: Array,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
) -> tuple[Array, Array, Array]:
    """``(out, k_cache, v_cache)``, the caches written."""
    arguments = {
        "q": q,
        "k": k,
        "v": v,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "slot_mapping": slot_mapping,
        "block_tables": block_tables,
        "seq_lens": seq_lens,
        "cu_seqlens_q": cu_seqlens_q,
        "sinks": sinks,
    }
    options = {"scale": scale, "window": window, "softcap": softcap}
    return tuple(_run("scatter_paged_attention", arguments, options))


def paged_attention(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    block_tables: Array,
    seq_lens: Array,
    cu_seqlens_q: Array,
    *,
    scale: float,
    window: int | None = None,
    softcap: float | None = None,
    sinks: Array | None = None,
) -> Array:
    """``[num_tokens, num_q_heads, head_dim_v]``."""
    arguments = {
        "q": q,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "block_tables": block_tables,
        "seq_lens": seq_lens,
        "cu_seqlens_q": cu_seqlens_q,
        "sinks": sinks,
    }
    options = {"scale": scale, "window": window, "softcap": softcap}
    (out,) = _run("paged_attention", arguments, options)
    return out


def reshape_and_cache(
    k: Array, v: Array, k_cache: Array, v_cache: Array, slot_mapping: Array
) -> tuple[Array, Array]:
    """``(k_cache, v_cache)``, written."""
    arguments = {
        "k": k,
        "v": v,
        "k_cache": k_cache,
        "v_cache": v_cache,
        "slot_mapping": slot_mapping,
    }
    return tuple(_run("reshape_and_cache", arguments, {}))


def _run(name: str, arguments: dict[str, Array | None], options: dict[str, Any]) -> list[Array]:
    given = {key: array for key, array in arguments.items() if array is not None}
    with exact_allocations():
        converted = dict(zip(given, to_mlx(*given.values()), strict=True))
        outputs, launch = _evaluated(name, converted, options)
    _last[:] = [OperatorLaunch(launch, converted, options)]
    first = next(iter(given.values()))
    return [like(first, output) for output in outputs]


def _evaluated(
    name: str, arguments: dict[str, mx.array], options: dict[str, Any]
) -> tuple[list[mx.array], Launch]:
    module = extension()
    module.end_encoding()
    # Those of calls that failed among them.
    module.take_launches()
    # The public operator, which checks its arguments.
    result = getattr(attention, name)(**arguments, **options, path=path())
    outputs = [result] if isinstance(result, mx.array) else list(result)
    mx.eval(outputs)
    (launch,) = take_launches()
    return outputs, launch
