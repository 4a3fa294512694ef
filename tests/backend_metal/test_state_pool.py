"""The pool of recurrent state, and what a step's metadata promises."""

from __future__ import annotations

import mlx.core as mx
import numpy as np
import pytest

from backend_metal.recurrent import RecurrentSpec, StateArray, StateMetadata, StatePool

SPECS = (
    RecurrentSpec((StateArray((3, 8), mx.bfloat16), StateArray((2, 4, 8), mx.float32)), True),
    RecurrentSpec((StateArray((2, 8), mx.bfloat16),)),
)


def ints(*values: int) -> mx.array:
    return mx.array(values, mx.int32)


def metadata(reads: list[int], writes: list[int], borders: list[int]) -> StateMetadata:
    return StateMetadata.of(*(np.array(part, np.int32) for part in (reads, writes, borders)))


def test_sizes() -> None:
    assert SPECS[0].nbytes == 3 * 8 * 2 + 2 * 4 * 8 * 4
    assert StatePool.bytes_per_slot(SPECS) == SPECS[0].nbytes + 2 * 8 * 2
    pool = StatePool(SPECS, 5)
    assert pool.nbytes == sum(array.nbytes for array in pool.evaluation_roots())
    with pytest.raises(ValueError, match="num_slots must be at least 1, not 0"):
        StatePool(SPECS, 0)
    with pytest.raises(ValueError, match="path must be one of"):
        StatePool(SPECS, 1, path="vulkan")


def test_states_are_where_they_were_written() -> None:
    pool = StatePool(SPECS, 5)
    rng = np.random.default_rng(0)
    states = [
        mx.array(rng.standard_normal((2, *array.shape))).astype(array.dtype)
        for array in SPECS[0].arrays
    ]
    pool.write(0, ints(4, 1), states)
    for kept, state in zip(pool.read(0, ints(1, 4, 0)), states, strict=True):
        np.testing.assert_array_equal(
            np.array(kept.astype(mx.float32)),
            np.array(mx.stack([state[1], state[0], mx.zeros_like(state[0])]).astype(mx.float32)),
        )
    pool.reset()
    assert all(not np.array(array.astype(mx.float32)).any() for array in pool.evaluation_roots())


def test_rebinding_takes_what_evaluation_roots_gave() -> None:
    pool = StatePool(SPECS, 2)
    pool.rebind([array + 1 for array in pool.evaluation_roots()])
    assert all((array == 1).all() for array in pool.evaluation_roots())
    assert [part.shape for part in pool.read(1, ints(0))] == [(1, 2, 8)]


def test_other_states_are_refused() -> None:
    pool = StatePool(SPECS, 2)
    with pytest.raises(ValueError, match="recurrent layer 1 must be"):
        pool.write(1, ints(0), [mx.zeros((1, 2, 8), mx.float32)])
    with pytest.raises(ValueError, match="recurrent layer 1 must be"):
        pool.write(1, ints(0), [mx.zeros((1, 3, 8), mx.bfloat16)])


def test_who_writes_in_place() -> None:
    assert StatePool(SPECS[:1], 1, path="cpu").writes_in_place
    assert not StatePool(SPECS, 1, path="cpu").writes_in_place
    assert not StatePool(SPECS[:1], 1, path="reference").writes_in_place


@pytest.mark.parametrize(
    ("reads", "writes", "borders"),
    [
        ([0], [5], [0, 1]),
        ([5], [0], [0, 1]),
        ([-2], [0], [0, 1]),
        ([0, 1], [2, 2], [0, 1, 2]),
        ([0, 1], [1, 2], [0, 1, 2]),
        ([0], [0], [0, 0]),
        ([0], [0], [1, 2]),
        ([0, 1], [0], [0, 1]),
    ],
)
def test_steps_that_break_the_promise(
    reads: list[int], writes: list[int], borders: list[int]
) -> None:
    with pytest.raises(AssertionError):
        metadata(reads, writes, borders).check_integrity(5)


def test_a_prefix_hit_a_fork_and_a_new_sequence() -> None:
    metadata([3, 3, -1, 2], [0, 1, 4, 2], [0, 1, 3, 9, 10]).check_integrity(5)


def test_states_are_such_as_gpus_can_write() -> None:
    with pytest.raises(ValueError, match=r"at most 4 bytes an element, not of mlx\.core\.int64"):
        StateArray((3,), mx.int64)
