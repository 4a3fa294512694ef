"""The GPU plan of sequences with several query tokens: tiles, splits and partial states."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import _native, native
from tests.support.backend_metal.native_cases import HEAD_DIMS
from tests.support.fuzzing import fuzz

FUZZ = fuzz(200)
CORES = (1, 8, 20, 40, 80)


def plan(
    *,
    heads: tuple[int, int] = (8, 4),
    head_dims: tuple[int, int] = (128, 128),
    itemsize: int = 2,
    num_cores: int = 20,
    **batch: Any,
) -> _native.PrefillPlan:
    num_kv_heads, group = heads
    return native.plan_gpu_launch(
        num_q_heads=num_kv_heads * group,
        num_kv_heads=num_kv_heads,
        head_dim=head_dims[0],
        head_dim_v=head_dims[1],
        itemsize=itemsize,
        num_cores=num_cores,
        threadgroup_memory_bytes=32768,
        **batch,
    ).prefill


def test_tiles_of_every_head_dim() -> None:
    """Two threadgroups fit into a core of 60 KB; most are one tile of 32 x 32."""
    sizes = {
        (head_dims, itemsize): plan(
            head_dims=head_dims, itemsize=itemsize, num_tokens=9, num_seqs=1, max_context=64
        )
        for head_dims in [*HEAD_DIMS, (256, 80), (112, 256)]
        for itemsize in (2, 4)
    }
    for made in sizes.values():
        assert made.grid.threadgroup_memory_bytes <= 24 * 1024
        assert made.grid.threads in (128, 256)
        assert made.key_tile in (8, 16, 32)
    for dim in (64, 80, 96, 112, 128):
        for itemsize in (2, 4):
            made = sizes[(dim, dim), itemsize]
            assert (made.tile_rows, made.key_tile, made.grid.threads) == (32, 32, 128)
    assert sizes[(576, 512), 2].tile_rows == 16


@st.composite
def batches(draw: st.DrawFn) -> tuple[list[int], int]:
    """Query tokens of each sequence, and a bound of their contexts."""
    q_lens = draw(
        st.lists(st.one_of(st.integers(0, 3), st.integers(0, 400)), min_size=1, max_size=6)
    )
    return q_lens, draw(st.integers(max(q_lens), 200_000))


@FUZZ
@given(
    batch=batches(),
    heads=st.tuples(st.integers(1, 16), st.sampled_from([1, 2, 3, 8, 16, 128])),
    num_cores=st.sampled_from(CORES),
    window=st.one_of(st.none(), st.integers(1, 5000)),
    data=st.data(),
)
def test_every_split_is_launched_and_has_room(
    batch: tuple[list[int], int],
    heads: tuple[int, int],
    num_cores: int,
    window: int | None,
    data: st.DataObject,
) -> None:
    q_lens, max_context = batch
    num_kv_heads, group = heads
    made = plan(
        heads=heads,
        num_cores=num_cores,
        window=window,
        num_tokens=sum(q_lens),
        num_seqs=len(q_lens),
        max_context=max_context,
    )
    if made.num_splits < 2:
        assert made.num_partials == 0
        return
    # Partial states of a K/V head, as shaders/attention/prefill_splits.h places them.
    places: list[tuple[int, int]] = []
    of_a_row, of_a_sequence = made.num_splits, made.device_tiles * made.tile_rows
    first_token = 0
    for index, q_len in enumerate(q_lens):
        rows = q_len * group
        tiles = max(-(-rows // made.tile_rows), 1)
        most = native.most_splits(tiles, made.device_tiles, made.max_splits)
        if q_len > 1 and most > 1:
            seq_len = data.draw(st.integers(0, max_context))
            first_key = 0 if window is None else max(seq_len - q_len - window + 1, 0)
            *_, count = native.even_splits(first_key, seq_len, made.keys_per_split, most)
            assert count <= made.num_splits <= made.max_splits
            first = min(first_token * group * of_a_row, index * of_a_sequence)
            places.append((first, first + rows * count))
        first_token += q_len
    assert all(end <= start for (_, end), (start, _) in pairwise(places))
    state_floats = num_kv_heads * (128 + 2)
    assert made.num_partials >= state_floats * max((end for _, end in places), default=0)
    assert made.num_partials <= state_floats * min(
        sum(q_lens) * group * of_a_row, len(q_lens) * of_a_sequence
    )
    assert made.grid.threadgroups[:2] == made.reduce.threadgroups[:2]


@FUZZ
@given(
    seen=st.tuples(st.integers(0, 200_000), st.integers(0, 40_000)),
    tiles=st.integers(1, 200),
    device_tiles=st.integers(0, 600),
)
def test_splits_are_even_and_fill_the_device_once(
    seen: tuple[int, int], tiles: int, device_tiles: int
) -> None:
    first_key, num_keys = seen
    most = native.most_splits(tiles, device_tiles, 16)
    assert most == 1 or (most <= 16 and most * tiles <= device_tiles)
    assert most == 16 or (most + 1) * tiles > device_tiles
    start, length, count = native.even_splits(first_key, first_key + num_keys, 1024, most)
    assert count <= most
    if num_keys == 0:
        assert count == 0
        return
    assert start % 128 == length % 128 == 0
    assert 0 <= first_key - start < 128
    assert (count - 1) * length < first_key + num_keys - start <= count * length
    assert length <= 1024 or count * (length - 128) < first_key + num_keys - start
    assert length >= 512 or count == 1


@pytest.mark.parametrize("num_cores", CORES)
@pytest.mark.parametrize("num_kv_heads", [1, 2, 8])
def test_a_short_chunk_of_a_long_context_fills_the_device(
    num_cores: int, num_kv_heads: int
) -> None:
    made = plan(
        heads=(num_kv_heads, 4), num_cores=num_cores, num_tokens=16, num_seqs=1, max_context=65536
    )
    tiles = 16 * 4 // made.tile_rows
    # 16 splits at most: a partial state of more would take longer than the keys it saves.
    assert tiles * num_kv_heads * made.num_splits >= min(4 * num_cores, 16 * tiles * num_kv_heads)


@pytest.mark.parametrize(
    ("num_tokens", "num_splits"),
    [(16, 9), (32, 9), (128, 8), (512, 2), (528, 2), (529, 1), (2048, 1)],
)
def test_a_chunk_fills_the_device_once(num_tokens: int, num_splits: int) -> None:
    """Of 132 cores, which run 66 tiles of 32 rows at a time for each of 8 K/V heads."""
    made = plan(
        heads=(8, 2), num_cores=132, num_tokens=num_tokens, num_seqs=1, max_context=8192 + 528
    )
    tiles = -(-num_tokens * 2 // made.tile_rows)
    assert made.num_splits == num_splits
    assert tiles * num_splits <= 66 or num_splits == 1


def test_decode_alone_launches_no_splits() -> None:
    assert plan(num_tokens=32, num_seqs=32, max_context=65536).num_splits == 1
    assert plan(num_tokens=33, num_seqs=32, max_context=65536).num_splits > 1


def test_one_sequence_of_many_rows_has_one_split() -> None:
    few = plan(num_tokens=16, num_seqs=1, max_context=65536)
    tokens = few.device_tiles // 2 * few.tile_rows // 4
    assert few.num_splits > 2
    assert plan(num_tokens=tokens, num_seqs=1, max_context=65536).num_splits == 2
    assert plan(num_tokens=tokens + 1, num_seqs=1, max_context=65536).num_splits == 1
    # The other one may have few rows.
    assert plan(num_tokens=tokens + 1, num_seqs=2, max_context=65536).num_splits > 1


def test_short_windows_have_one_split() -> None:
    batch = {"num_tokens": 2000, "num_seqs": 2, "max_context": 65536}
    assert [plan(**batch, window=window).num_splits for window in (1, 128, 1024)] == [1, 1, 1]
    assert plan(**batch, window=1025).num_splits > 1


def test_short_contexts_and_large_groups_have_one_split() -> None:
    short = plan(num_tokens=40, num_seqs=2, max_context=1024)
    assert (short.num_splits, short.num_partials) == (1, 0)
    assert 0 in short.reduce.threadgroups
    # Two tokens of so many heads are too many rows.
    large = plan(heads=(8, 128), num_cores=8, num_tokens=40, num_seqs=2, max_context=65536)
    assert large.num_splits == 1
