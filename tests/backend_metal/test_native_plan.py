"""The launch plan covers all work once, and no result depends on how it was cut."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import _native, native
from tests.support.backend_metal import attention_oracle as oracle
from tests.support.backend_metal.native_cases import DTYPES, as_numpy, make_case, run
from tests.support.fuzzing import fuzz

FUZZ = fuzz(120)
L2 = 512 * 1024


def plan(
    spans: list[tuple[int, int]],
    *,
    heads: tuple[int, int] = (8, 2),
    head_dims: tuple[int, int] = (128, 128),
    window: int | None = None,
    num_threads: int = 4,
    memory: int = L2,
    one_kernel: bool = False,
) -> _native.LaunchPlan:
    num_kv_heads, group = heads
    return native.plan_launch(
        [sum(span) for span in spans],
        np.cumsum([0, *(q_len for q_len, _ in spans)]).tolist(),
        num_q_heads=num_kv_heads * group,
        num_kv_heads=num_kv_heads,
        head_dim=head_dims[0],
        head_dim_v=head_dims[1],
        window=window,
        num_threads=num_threads,
        cache_bytes=memory,
        one_kernel=one_kernel,
    )


@FUZZ
@given(
    spans=st.lists(st.tuples(st.integers(0, 70), st.integers(0, 9000)), min_size=1, max_size=3),
    heads=st.tuples(st.integers(1, 3), st.sampled_from([1, 3, 8, 16])),
    window=st.one_of(st.none(), st.integers(1, 3000)),
    num_threads=st.integers(1, 64),
)
def test_every_row_folds_every_split_once(
    spans: list[tuple[int, int]], heads: tuple[int, int], window: int | None, num_threads: int
) -> None:
    made = plan(spans, heads=heads, window=window, num_threads=num_threads)
    num_kv_heads, group = heads
    splits: dict[tuple[int, int, int], list[int]] = {}
    partials: list[int] = []
    for task in made.tasks:
        for head in range(task.num_heads):
            for row in range(task.num_rows):
                key = (task.seq, task.first_head + head, task.first_row + row)
                # A row without a key has a task too: someone must write its zeros.
                folded = splits.setdefault(key, [])
                for split in range(task.num_splits):
                    folded.append(task.first_split + split)
                    if task.partial >= 0:
                        state = task.partial + split * task.split_stride
                        partials.append(state + head * task.num_rows + row)
    rows = {
        (seq, head, row)
        for seq, (q_len, _) in enumerate(spans)
        for head in range(num_kv_heads)
        for row in range(q_len * group)
    }
    assert splits.keys() == rows
    for (seq, _, row), folded in splits.items():
        q_len, before = spans[seq]
        position = before + row // group
        first = 0 if window is None else max(position - window + 1, 0)
        needed = set(range(first // 512, position // 512 + 1))
        assert len(folded) == len(set(folded))
        # A tile's other rows may see more; what is not visible is masked.
        assert needed <= set(folded)
        assert len(folded) <= len(needed) + 1 + q_len // 512
    assert sorted(partials) == list(range(made.num_partials))
    merged = [
        (m.seq, head, row)
        for m in made.merges
        for head in range(m.first_head, m.first_head + m.num_heads)
        for row in range(m.first_row, m.first_row + m.num_rows)
    ]
    assert len(merged) == len(set(merged))
    costs = [task.cost for task in made.tasks]
    assert costs == sorted(costs, reverse=True)


def test_kernels() -> None:
    def kernels(spans: list[tuple[int, int]], heads: tuple[int, int] = (8, 2)) -> set[str]:
        return {task.kernel for task in plan(spans, heads=heads).tasks}

    assert kernels([(1, 30), (1, 2)]) == {"decode"}
    assert kernels([(5, 30), (9, 0)]) == {"prefill"}
    assert kernels([(1, 30), (9, 0)]) == {"decode", "prefill"}
    # One token of many heads is a matrix.
    assert kernels([(1, 30)], heads=(1, 16)) == {"prefill"}


def test_one_long_sequence_is_shared_by_all_threads() -> None:
    for group in (1, 16):
        for num_threads in (2, 8, 32):
            made = plan([(1, 32767)], heads=(1, group), num_threads=num_threads)
            assert len(made.tasks) >= num_threads
            assert max(task.cost for task in made.tasks) <= 2 * made.tasks[-1].cost
            splits = sum(task.num_splits for task in made.tasks)
            assert splits == 32768 // _native.KEYS_PER_SPLIT


def test_a_thread_alone_keeps_no_partial_state() -> None:
    made = plan([(1, 32767), (64, 4000)], num_threads=1)
    assert made.num_partials == 0
    assert made.merges == []


def test_windows_leave_old_splits_out() -> None:
    (task,) = plan([(1, 32767)], window=100, num_threads=1).tasks
    assert (task.first_split, task.num_splits) == (63, 1)


def test_tiles_fit_the_memory_that_there_is() -> None:
    rows = []
    for memory in (64, 256, 512, 4096):
        made = plan([(300, 0)], heads=(1, 1), head_dims=(576, 512), memory=memory * 1024)
        assert sum(task.num_rows for task in made.tasks) == 300
        rows.append(max(task.num_rows for task in made.tasks))
    # Of a row: a query, two outputs, 64 scores; besides, 64 keys and values.
    assert 4 * (rows[2] * (576 + 2 * 512 + 64) + 64 * (576 + 512)) <= 512 * 1024
    assert rows == [_native.TILED_GROUP, _native.TILED_GROUP, 32, _native.MAX_TILE_ROWS]


@pytest.fixture(name="threads")
def _threads() -> Iterator[list[int]]:
    before = native.num_threads()
    yield [1, 2, 3, 7]
    native.set_num_threads(before)


SEQUENCES = [(1, 2500), (1, 700), (1, 3), (40, 1300), (2, 600), (150, 0), (17, 5)]


@pytest.mark.parametrize(
    ("heads", "head_dims"), [((2, 2), (64, 64)), ((4, 7), (80, 64)), ((1, 16), (576, 512))]
)
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_rows_bits_depend_on_nothing_else(
    heads: tuple[int, int], head_dims: tuple[int, int], dtype: mx.Dtype, threads: list[int]
) -> None:
    """Neither on the threads nor on who else is in the batch, nor on their order."""
    case = make_case(
        5, heads, True, dtype=dtype, spans=SEQUENCES, head_dims=head_dims, block_size=16
    )
    bounds = case.cu_seqlens_q
    native.set_num_threads(1)
    alone = [as_numpy(run(only(case, [seq]))[0]) for seq in range(len(SEQUENCES))]
    for count, order in zip(
        threads, ([0, 1, 2, 3, 4, 5, 6], [6, 3, 0], [5, 0], [4, 1, 2]), strict=True
    ):
        native.set_num_threads(count)
        assert native.num_threads() == count
        together = as_numpy(run(only(case, order))[0])
        want = np.concatenate([alone[seq] for seq in order])
        np.testing.assert_array_equal(together, want)
        assert len(want) == sum(bounds[seq + 1] - bounds[seq] for seq in order)


def only(case: oracle.Case, order: list[int]) -> oracle.Case:
    """The step of some of its sequences."""
    bounds = case.cu_seqlens_q
    rows = np.concatenate([np.arange(bounds[seq], bounds[seq + 1]) for seq in order])
    return oracle.Case(
        case.dtype,
        case.q[rows],
        case.k[rows],
        case.v[rows],
        case.k_cache,
        case.v_cache,
        case.slot_mapping[rows],
        case.block_tables[order],
        case.seq_lens[order],
        np.cumsum([0, *(bounds[seq + 1] - bounds[seq] for seq in order)]),
        case.options,
    )


@pytest.mark.parametrize("window", [None, 45])
def test_a_prefills_bits_do_not_depend_on_its_chunks(window: int | None) -> None:
    case = make_case(
        6, (2, 2), False, dtype=mx.float32, spans=[(300, 450)], block_size=16, window=window
    )
    whole = as_numpy(run(case)[0])
    arrays = case.mlx()
    caches = [arrays.pop("k_cache"), arrays.pop("v_cache")]
    cuts = [0, 7, 100, 102, 300]
    for start, end in pairwise(cuts):
        rows = {name: arrays[name][start:end] for name in ("q", "k", "v", "slot_mapping")}
        out, *caches = native.scatter_paged_attention(
            **rows,
            k_cache=caches[0],
            v_cache=caches[1],
            block_tables=arrays["block_tables"],
            seq_lens=mx.array([450 + end], mx.int32),
            cu_seqlens_q=mx.array([0, end - start], mx.int32),
            **case.mlx_options(),
        )
        np.testing.assert_array_equal(as_numpy(out), whole[start:end])


@FUZZ
@given(
    spans=st.lists(st.tuples(st.integers(1, 3), st.integers(0, 900)), min_size=1, max_size=4),
    heads=st.tuples(st.integers(1, 3), st.sampled_from([1, 3, 8, 16])),
)
def test_one_kernel_takes_tokens_that_are_alone_too(
    spans: list[tuple[int, int]], heads: tuple[int, int]
) -> None:
    made = plan(spans, heads=heads, one_kernel=True)
    assert {task.kernel for task in made.tasks} == {"prefill"}
