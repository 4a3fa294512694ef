"""How many bytes of K/V a launch reads, over those that it must."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import mlx.core as mx
import numpy as np

from tests.metal_on_cpu.host import Launch, extension


@dataclass(frozen=True)
class _Inputs:
    """Positions among a primitive's inputs."""

    keys_and_values: frozenset[int]
    block_tables: int


INPUTS = {
    "ScatterPagedAttention": _Inputs(frozenset({1, 2, 3, 4}), 6),
    "PagedAttention": _Inputs(frozenset({1, 2}), 3),
}


def read_amplification(
    launch: Launch, arguments: Mapping[str, mx.array], options: Mapping[str, Any]
) -> float:
    """Distinct K/V bytes that each threadgroup loads to attend, summed, over those that must be.

    ``launch`` has tracked its loads. Only dispatches that follow the block tables attend: scatter
    reads this step's keys and values too, once, to write them.
    """
    inputs = INPUTS[launch.primitive]
    loaded = sum(
        count
        for dispatch in launch.dispatches
        if any(inputs.block_tables in found for found in dispatch.inputs_of_slot.values())
        for slot, count in dispatch.loaded_bytes.items()
        if inputs.keys_and_values & set(dispatch.inputs_of_slot[slot])
    )
    return loaded / visible_kv_bytes(arguments, window=options.get("window"))


def visible_kv_bytes(arguments: Mapping[str, mx.array], *, window: int | None) -> int:
    """Bytes of the keys and values that any query sees, each counted once a K/V head.

    ``arguments`` are an attention operator's. A token of this step with a slot is read from ``k``
    and ``v``. Where ``v_cache`` is a view of ``k_cache``'s rows, the rows are counted once.
    """
    k_cache, v_cache = arguments["k_cache"], arguments["v_cache"]
    num_kv_heads = k_cache.shape[2]
    values = 0 if _is_prefix(k_cache, v_cache) else v_cache.shape[3]
    row_bytes = num_kv_heads * (k_cache.shape[3] + values) * k_cache.dtype.size
    return len(_visible_tokens(arguments, window)) * row_bytes


def _visible_tokens(arguments: Mapping[str, mx.array], window: int | None) -> set[tuple[str, int]]:
    """Where they lie: ("own", row of k) or ("cache", slot)."""
    tables, seq_lens, bounds = (
        np.array(arguments[name]) for name in ("block_tables", "seq_lens", "cu_seqlens_q")
    )
    slots = np.array(arguments["slot_mapping"]) if "slot_mapping" in arguments else None
    block_size = arguments["k_cache"].shape[1]
    places: set[tuple[str, int]] = set()
    for seq, seq_len in enumerate(seq_lens.tolist()):
        start, end = bounds[seq : seq + 2].tolist()
        before = seq_len - (end - start)
        first_query = max(before, 0)
        first = 0 if window is None else max(first_query - window + 1, 0)
        for position in range(first, seq_len if end > start else 0):
            row = start + position - before
            if slots is not None and position >= before and slots[row] >= 0:
                places.add(("own", row))
            else:
                block = int(tables[seq, position // block_size])
                places.add(("cache", block * block_size + position % block_size))
    return places


def _is_prefix(k_cache: mx.array, v_cache: mx.array) -> bool:
    """Whether a row of ``v_cache`` is the beginning of a row of ``k_cache``, in one buffer."""
    address = extension().address
    return address(k_cache) == address(v_cache)
