"""The way in: NumPy arrays of any strides go in and come out, and what was dispatched is seen."""

from __future__ import annotations

from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from tests.metal_on_cpu import host, operators
from tests.metal_on_cpu.arrays import to_mlx
from tests.metal_on_cpu.host.build import SHADERS
from tests.support.backend_metal import attention_oracle as oracle
from tests.support.backend_metal.native_cases import attention, make_case
from tests.support.backend_metal.packed_step import relative_rms

CASE = make_case(1, heads=(2, 4), has_sinks=True, dtype=mx.float32, spans=[(1, 700), (7, 20)])
# Keys of one split: no reduction, which waits for all that was dispatched before it.
UNSPLIT = make_case(2, heads=(2, 4), has_sinks=False, dtype=mx.float32, spans=[(1, 70), (7, 20)])
CACHES = ("k_cache", "v_cache")


def arguments(case: oracle.Case = CASE, dtype: type = np.float32) -> dict[str, np.ndarray]:
    floats = {name: getattr(case, name).astype(dtype) for name in ("q", "k", "v", *CACHES)}
    ints = ("slot_mapping", "block_tables", "seq_lens", "cu_seqlens_q")
    return floats | {name: getattr(case, name).astype(np.int32) for name in ints}


def run(case: oracle.Case = CASE, **changed: np.ndarray) -> tuple[np.ndarray, ...]:
    return operators.scatter_paged_attention(**arguments(case) | changed, **case.options)


@pytest.mark.parametrize("dtype", [np.float32, np.float16])
def test_numpy_arrays_go_in_and_come_out(dtype: type) -> None:
    given = arguments(dtype=dtype)
    before = {name: array.copy() for name, array in given.items()}
    out, k_cache, v_cache = operators.scatter_paged_attention(**given, **CASE.options)
    for name, array in given.items():
        np.testing.assert_array_equal(array, before[name])
    assert out.dtype == k_cache.dtype == v_cache.dtype == dtype
    tolerance = oracle.TOLERANCES[mx.float32 if dtype is np.float32 else mx.float16]
    assert relative_rms(out.astype(np.float64), attention(CASE)) <= tolerance
    for cache, written in zip((k_cache, v_cache), oracle.scatter(CASE), strict=True):
        np.testing.assert_array_equal(cache, written.astype(dtype))
    read = {name: given[name] for name in ("q", "block_tables", "seq_lens", "cu_seqlens_q")}
    again = operators.paged_attention(**read, k_cache=k_cache, v_cache=v_cache, **CASE.options)
    np.testing.assert_array_equal(again, out)
    written = operators.reshape_and_cache(
        given["k"], given["v"], given["k_cache"], given["v_cache"], given["slot_mapping"]
    )
    np.testing.assert_array_equal(written[0], k_cache)
    np.testing.assert_array_equal(written[1], v_cache)


def strided_caches(layout: str) -> dict[str, np.ndarray]:
    caches = {name: arguments()[name] for name in CACHES}
    if layout == "one buffer":
        shape = caches["k_cache"].shape
        combined = np.full((*shape[:3], 3 * shape[3]), np.nan, np.float32)
        views = {"k_cache": combined[..., 4:68], "v_cache": combined[..., 100:164]}
        for name, cache in caches.items():
            views[name][...] = cache
        return views
    if layout == "backwards":
        return {name: cache[::-1].copy()[::-1] for name, cache in caches.items()}
    return {name: cache.swapaxes(0, 2).copy().swapaxes(0, 2) for name, cache in caches.items()}


@pytest.mark.parametrize("layout", ["one buffer", "backwards", "blocks last"])
def test_strides_and_shared_memory_are_kept(layout: str) -> None:
    caches = strided_caches(layout)
    k_cache, v_cache = to_mlx(*caches.values())
    for view, array in zip((k_cache, v_cache), caches.values(), strict=True):
        np.testing.assert_array_equal(np.array(view), array)
        strides = np.asarray(memoryview(view)).strides
        assert strides == array.strides
    distance = host.extension().address(v_cache) - host.extension().address(k_cache)
    assert (distance == 96 * 4) == (layout == "one buffer")
    for actual, expected in zip(run(**caches), run(), strict=True):
        np.testing.assert_array_equal(actual, expected)


def test_no_barrier_between_scatter_and_attention() -> None:
    """Nothing but the reductions waits; the order of what does not wait is free."""
    results = []
    for reverse in (False, True):
        with host.execution(reverse_unordered=reverse):
            results.append(run())
        dispatches = operators.last_launch().dispatches
        waiting = [d.kernel.split("_float")[0] for d in dispatches[1:] if d.barrier_before]
        free = {d.kernel.split("_float")[0] for d in dispatches} - set(waiting)
        assert free == {"decode", "prefill", "scatter_uint"}
        assert waiting == ["reduce"]
        assert operators.last_launch().barriers == 1
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize(
    ("option", "spans", "kernel"),
    [
        ("decodes", [(1, 20), (1, 0), (1, 9)], "decode"),
        ("prefills", [(5, 20), (2, 0), (9, 9)], "prefill"),
    ],
)
def test_a_step_of_one_kind_launches_no_other(
    option: str, spans: list[tuple[int, int]], kernel: str
) -> None:
    case = make_case(4, (2, 2), False, dtype=mx.float32, spans=spans)
    module, results, launched = host.extension(), [], []
    for options in ({}, {option: True}):
        module.take_launches()
        outputs = module.scatter_paged_attention(**case.mlx(), **case.mlx_options(), **options)
        results.append([np.array(array) for array in outputs])
        (launch,) = host.take_launches()
        launched.append([d.kernel.split("_float")[0] for d in launch.dispatches])
    assert launched == [["decode", "prefill", "scatter_uint"], [kernel, "scatter_uint"]]
    for first, second in zip(*results, strict=True):
        np.testing.assert_array_equal(first, second)


def in_one_encoder(*calls: str) -> list[bool]:
    """Operators on the cache "a" or "b" by turns; whether each waits for dispatches before it."""
    inputs, options = UNSPLIT.mlx(), UNSPLIT.mlx_options()
    caches = {pool: {name: inputs[name] * 1 for name in CACHES} for pool in ("a", "b")}
    mx.eval(inputs, caches)
    read = {name: inputs[name] for name in ("q", "block_tables", "seq_lens", "cu_seqlens_q")}
    module = host.extension()
    module.end_encoding()
    module.take_launches()
    for call in calls:
        operator, pool = call.split()
        if operator == "read":
            mx.eval(module.paged_attention(**read, **caches[pool], **options))
        elif operator == "attend":
            mx.eval(module.scatter_paged_attention(**inputs | caches[pool], **options))
        else:
            new = {name: inputs[name] for name in ("k", "v", "slot_mapping")}
            mx.eval(module.reshape_and_cache(**new, **caches[pool]))
    return [launch.dispatches[0].barrier_before for launch in host.take_launches()]


def test_a_launch_waits_for_those_that_used_its_caches() -> None:
    """And for no other: a barrier idles the GPU."""
    assert in_one_encoder("attend a", "attend b") == [False, False]
    assert in_one_encoder("read a", "read a") == [False, False]
    assert in_one_encoder("read b", "attend a") == [False, False]
    assert in_one_encoder("read a", "attend a") == [False, True]
    assert in_one_encoder("attend a", "read a") == [False, True]
    assert in_one_encoder("attend a", "attend a") == [False, True]
    assert in_one_encoder("read a", "write a", "attend a") == [False, True, True]


def test_the_cache_does_not_end_a_command_buffer() -> None:
    """MLX ends one when the arrays that it meets are large, whose memory waits for the GPU."""
    counted = []
    for extra in (0, 1000):
        caches = {
            name: np.pad(arguments()[name], [(0, extra), (0, 0), (0, 0), (0, 0)]) for name in CACHES
        }
        host.extension().end_encoding()
        run(**caches)
        counted.append(operators.last_launch().launch.counted_elements)
    assert counted[0] == counted[1]
    assert counted[0] > CASE.q.size


def test_a_kernel_is_searched_by_name_once() -> None:
    """Each layer of each step asks for the same few."""
    module = host.extension()
    module.clear_libraries(str(SHADERS))
    before = module.num_kernel_searches()
    pipelines: set[str] = set()
    for window, is_new in ((None, True), (None, False), (33, True), (None, False), (33, False)):
        operators.scatter_paged_attention(**arguments(), **CASE.options | {"window": window})
        used = {dispatch.pipeline_key for dispatch in operators.last_launch().dispatches}
        assert (not used <= pipelines) == is_new
        pipelines |= used
        assert module.num_kernel_searches() - before == len(pipelines)


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_schedules_do_not_change_a_bit(seed: int) -> None:
    with host.execution(seed=seed, workers=1 + seed % 2):
        scheduled = run()
    for first, second in zip(scheduled, run(), strict=True):
        np.testing.assert_array_equal(first, second)


def test_the_device_decides_how_keys_are_split() -> None:
    case = make_case(2, heads=(4, 2), has_sinks=False, dtype=mx.float32, spans=[(1, 2000)])
    grids = []
    for core_count in (8, 20, 76):
        with host.gpu(core_count=core_count):
            out, *_ = run(case)
        assert relative_rms(out, attention(case)) <= 1e-5
        grids.append(operators.last_launch().grid)
    assert grids[0] < grids[1] <= grids[2]


def test_what_was_dispatched_is_seen() -> None:
    run()
    launch = operators.last_launch()
    assert launch.kernel == launch.kernels[0] == "decode_float_64_64_1"
    assert launch.grid[2] == 2
    assert launch.threadgroup == (128, 1, 1)
    assert 0 < launch.threadgroup_memory <= 32768
    assert launch.threadgroup_memory % 16 == 0
    assert launch.dispatches[0].threadgroup_barriers > 0
    assert launch.kv_read_amplification < 1.5


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"q": np.zeros((8, 7, 64), np.float32)}, "q must have"),
        ({"seq_lens": np.zeros(2, np.int64)}, "seq_lens must be int32"),
        ({"k": np.zeros((8, 2, 64), np.float16)}, "k must have k_cache's dtype"),
    ],
)
def test_arguments_are_checked(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        run(**changed)


def test_an_empty_step() -> None:
    case = make_case(1, heads=(1, 2), has_sinks=False, dtype=mx.float32, spans=[(0, 5)])
    out, k_cache, _ = run(case)
    assert out.shape == (0, 2, 64)
    np.testing.assert_array_equal(k_cache, case.k_cache)
