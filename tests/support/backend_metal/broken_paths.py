"""Attention paths that are each wrong in one way, over kernels that are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mlx.core as mx

from backend_metal import native
from backend_metal.device import CPU, REFERENCE, Device
from tests.support.backend_metal.changed_device import changed

Results = tuple[mx.array, mx.array, mx.array]


def wrong(scatter: Callable[..., Results]) -> Device:
    return changed(CPU, attention="metal", scatter_paged_attention=scatter)


def changed_out(change: Callable[[mx.array, dict[str, Any]], mx.array]) -> Device:
    def scatter(**arguments: Any) -> Results:
        out, *caches = native.scatter_paged_attention(**arguments)
        return change(out, arguments), *caches

    return wrong(scatter)


def changed_arguments(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Device:
    return wrong(lambda **given: native.scatter_paged_attention(**given | change(given)))


def several_splits(arguments: dict[str, Any]) -> bool:
    tokens = arguments["block_tables"].shape[1] * arguments["k_cache"].shape[1]
    return bool(tokens > native.KEYS_PER_SPLIT)


def decodes_only(arguments: dict[str, Any]) -> bool:
    return bool(arguments["q"].shape[0] == arguments["seq_lens"].size)


def scaled_where(condition: Callable[[dict[str, Any]], bool]) -> Device:
    return changed_out(lambda out, given: out * 1.05 if condition(given) else out)


def one_element(value: float) -> Device:
    def change(out: mx.array, given: dict[str, Any]) -> mx.array:
        out[-1, -1, -1] = value
        return out

    return changed_out(change)


def heads_mixed_up(out: mx.array, given: dict[str, Any]) -> mx.array:
    return mx.concatenate([out[:, 1:], out[:, :1]], axis=1)


def raises(**arguments: Any) -> Results:
    raise RuntimeError("[metal::Device] Unable to build metal library from source\nerror: no")


def writes_nothing(**arguments: Any) -> Results:
    # The reference leaves the arrays that it is given alone.
    out, *_ = REFERENCE.scatter_paged_attention(**arguments)
    return out, arguments["k_cache"], arguments["v_cache"]


def writes_a_neighbour(**arguments: Any) -> Results:
    out, keys, values = native.scatter_paged_attention(**arguments)
    stray = arguments["slot_mapping"][-1:] + 1
    rows = (arguments["k"][-1:], arguments["v"][-1:])
    return out, *REFERENCE.reshape_and_cache(*rows, keys, values, stray)


def reads_before_it_writes(**arguments: Any) -> Results:
    names = ("k", "v", "k_cache", "v_cache", "slot_mapping")
    read = {name: value for name, value in arguments.items() if name not in ("k", "v", names[4])}
    out = REFERENCE.paged_attention(**read)
    return out, *REFERENCE.reshape_and_cache(*(arguments[name] for name in names))


BROKEN = {
    "all of it slightly wrong": scaled_where(lambda given: True),
    "wrong over several splits": scaled_where(several_splits),
    "wrong within one split": scaled_where(lambda given: not several_splits(given)),
    "wrong where there are decodes alone": scaled_where(decodes_only),
    "wrong where there is a prefill": scaled_where(lambda given: not decodes_only(given)),
    "nothing but zeros": changed_out(lambda out, given: mx.zeros_like(out)),
    "one element is wrong": one_element(3.0),
    "one element is not a number": one_element(float("nan")),
    "one element is infinite": one_element(float("inf")),
    "another head's result": changed_out(heads_mixed_up),
    "another dtype": changed_out(lambda out, given: out.astype(mx.complex64)),
    "another scale": changed_arguments(lambda given: {"scale": given["scale"] * 1.1}),
    "one key too few": changed_arguments(lambda given: {"seq_lens": given["seq_lens"] - 1}),
    "raises when it is built": wrong(raises),
    "raises when it is evaluated": changed_arguments(
        lambda given: {"block_tables": given["block_tables"] + 10**6}
    ),
    "does not write the cache": wrong(writes_nothing),
    "writes the next slot": changed_arguments(
        lambda given: {"slot_mapping": mx.maximum(given["slot_mapping"] - 1, 0)}
    ),
    "writes a neighbour's slot as well": wrong(writes_a_neighbour),
    "reads before it writes": wrong(reads_before_it_writes),
}
"""Whatever the model."""

BROKEN_OPTIONS = {
    "ignores the window": changed_arguments(lambda given: {"window": None}),
    "window of one key more": changed_arguments(lambda given: {"window": given["window"] + 1}),
    "window of one key less": changed_arguments(lambda given: {"window": given["window"] - 1}),
    "ignores the softcap": changed_arguments(lambda given: {"softcap": None}),
    "ignores the sinks": changed_arguments(lambda given: {"sinks": None}),
    "another head's sink": changed_arguments(
        lambda given: {"sinks": mx.concatenate([given["sinks"][1:], given["sinks"][:1]])}
    ),
}
"""For a model with all three."""
