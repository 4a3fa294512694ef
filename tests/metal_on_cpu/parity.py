"""Holds the operators of this folder to ``backend_metal/devices/reference.py``."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import mlx.core as mx
import numpy as np

from backend_metal.devices import reference
from tests.metal_on_cpu import host, operators
from tests.support.backend_metal import attention_oracle as oracle
from tests.support.backend_metal.native_cases import as_numpy, check_caches, check_out

LAYOUTS = ("contiguous", "one buffer", "heads first", "blocks last")
CORE_COUNTS = (8, 20, 76)

CACHES = ("k_cache", "v_cache")
WRITES = ("k", "v", *CACHES, "slot_mapping")
READS = ("q", "block_tables", "seq_lens", "cu_seqlens_q")


def check(case: oracle.Case, *, layout: str = "contiguous", **changed: mx.array) -> None:
    """All three operators; ``changed`` replaces arguments by equal ones."""
    expected, *written = reference.scatter_paged_attention(**case.mlx(), **case.mlx_options())
    wanted, written = as_numpy(expected), [as_numpy(cache) for cache in written]

    def arguments() -> dict[str, mx.array]:
        return case.mlx() | laid_out(case, layout) | changed

    given = arguments()
    out, *caches = operators.scatter_paged_attention(**given, **case.mlx_options())
    check_out(case, out, wanted)
    check_caches(caches, written)
    # The written caches, read only: the very same.
    read = {name: given[name] for name in READS} | dict(zip(CACHES, caches, strict=True))
    again = operators.paged_attention(**read, **case.mlx_options())
    np.testing.assert_array_equal(as_numpy(again), as_numpy(out))
    fresh = arguments()
    check_caches(operators.reshape_and_cache(*(fresh[name] for name in WRITES)), written)


def laid_out(case: oracle.Case, layout: str) -> dict[str, mx.array]:
    """The caches of ``case``, in new memory with other strides; ``prefix`` is for cases whose
    values are the first dims of their keys."""
    caches = {name: case.mlx()[name] for name in CACHES}
    if layout == "contiguous":
        return caches
    if layout == "one buffer":
        return _views_of_one_buffer(**caches)
    if layout == "prefix":
        latent = caches["k_cache"]
        return {"k_cache": latent, "v_cache": latent[..., : case.v_cache.shape[3]]}
    order = (0, 2, 1, 3) if layout == "heads first" else (2, 1, 0, 3)
    back = np.argsort(order).tolist()
    return {
        name: mx.contiguous(cache.transpose(*order)).transpose(*back)
        for name, cache in caches.items()
    }


def _views_of_one_buffer(k_cache: mx.array, v_cache: mx.array) -> dict[str, mx.array]:
    # Between and around them what nobody may read as a number, or write.
    gap = mx.full((*k_cache.shape[:3], 8), float("nan"), k_cache.dtype)
    combined = mx.concatenate([gap, k_cache, gap, v_cache, gap], axis=-1)
    first = 16 + k_cache.shape[3]
    return {
        "k_cache": combined[..., 8 : first - 8],
        "v_cache": combined[..., first : first + v_cache.shape[3]],
    }


@contextmanager
def some_gpu(seed: int) -> Iterator[None]:
    """A device and a schedule, picked by ``seed``; all of them must give the same results."""
    with ExitStack() as stack:
        stack.enter_context(host.gpu(core_count=CORE_COUNTS[seed % 3]))
        stack.enter_context(
            host.execution(
                seed=seed % 5,
                reverse_unordered=seed % 2 == 1,
                guard_at_start=seed // 2 % 2 == 1,
            )
        )
        yield


def check_on_some_gpu(case: oracle.Case, seed: int, **arguments: Any) -> None:
    with some_gpu(seed):
        check(case, **arguments)
