"""What the host makes for every step, on its way to the device: the stand-in copies it when the
stream comes to it, which is long after."""

from __future__ import annotations

from collections.abc import Iterator

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.cuda.on_cpu.extension import operators
from tests.cuda.on_cpu.nvrtc import compile_kernel


@pytest.fixture(autouse=True)
def on_the_emulator() -> Iterator[None]:
    with mx.stream(mx.cpu):
        yield


@settings(max_examples=60)
@given(
    shape=st.lists(st.integers(0, 40), min_size=1, max_size=3),
    dtype=st.sampled_from([np.int32, np.uint32]),
    seed=st.integers(0, 99),
)
def test_an_array_is_what_the_host_had(shape: list[int], dtype: type, seed: int) -> None:
    values = np.random.default_rng(seed).integers(0, 2**31, shape).astype(dtype)
    expected = values.copy()
    uploaded = operators().upload(values)
    values[:] = 0
    np.testing.assert_array_equal(np.array(uploaded), expected)
    assert np.array(uploaded).dtype == dtype


@pytest.mark.parametrize("evaluated_at_once", [1, 3, 64])
def test_what_comes_next_leaves_what_is_on_its_way(evaluated_at_once: int) -> None:
    rng = np.random.default_rng(evaluated_at_once)
    values = rng.integers(0, 1000, (64, 3000), np.int32)
    uploaded = []
    for row in values:
        uploaded.append(operators().upload(row))
        if len(uploaded) % evaluated_at_once == 0:
            mx.async_eval(*uploaded[-evaluated_at_once:])
    np.testing.assert_array_equal(np.stack([np.array(one) for one in uploaded]), values)


def test_memory_of_the_host_is_used_again() -> None:
    before = operators().num_host_allocations()
    for number in range(200):
        uploaded = operators().upload(np.full((5, 7001), number, np.int32))
        assert uploaded[4, 7000].item() == number
    assert operators().num_host_allocations() - before <= 3


def test_steps_of_several_arrays_share_the_memory_of_two() -> None:
    before = operators().num_host_allocations()
    on_their_way: list[list[mx.array]] = []
    for step in range(40):
        arrays = [operators().upload(np.full(12_000, 5 * step + i, np.int32)) for i in range(5)]
        mx.async_eval(*arrays)
        on_their_way.append(arrays)
        if len(on_their_way) == 2:
            done = on_their_way.pop(0)
            assert [one[11_999].item() for one in done] == [*range(5 * step - 5, 5 * step)]
    assert operators().num_host_allocations() - before <= 15


def test_what_is_dropped_is_not_copied_and_leaves_its_memory() -> None:
    before = operators().num_host_allocations()
    for _ in range(50):
        operators().upload(np.zeros(9001, np.int32))
    assert operators().num_host_allocations() - before <= 2


def test_an_array_in_another_order_is_copied_first() -> None:
    values = np.arange(12, dtype=np.int32).reshape(3, 4).T
    np.testing.assert_array_equal(np.array(operators().upload(values)), values)


@pytest.mark.parametrize("dtype", [np.float64, np.int64, np.bool_])
def test_other_dtypes_are_refused(dtype: type) -> None:
    with pytest.raises(ValueError, match="int32 and uint32"):
        operators().upload(np.zeros(3, dtype))


@pytest.mark.parametrize(
    ("words", "name"),
    [(1, "copy_staged_unsigned"), (16384, "copy_staged_unsigned"), (16385, "copy")],
)
def test_little_is_copied_by_a_kernel(words: int, name: str) -> None:
    operators().take_nodes()
    mx.eval(operators().upload(np.zeros(words, np.int32)))
    assert [node for node, *_ in operators().take_nodes()] == [name, "event"]


@pytest.mark.parametrize("architecture", ["sm_80", "sm_90a"])
def test_it_compiles(architecture: str) -> None:
    resources = compile_kernel(
        "copy_staged", "copy_staged", "unsigned", "CopyStaged", 256, architecture, False
    )
    assert resources.spilled_bytes == 0
    assert resources.registers <= 32
