"""What fits the memory: blocks of each group, and what that means for sequences."""

from __future__ import annotations

import sys

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal.attention.kv_cache import KVCachePool, LayerAttention, LayerCacheSpec
from backend_metal.attention.kv_groups import group_layers
from backend_metal.engine.memory.kv_blocks import GIB, Demand, GroupBytes, num_kv_blocks, split
from backend_metal.engine.schedule.block_group import BlockGroup
from backend_metal.engine.schedule.block_pool import BlockPool

BLOCK_SIZE = 16
DEMAND = Demand(BLOCK_SIZE, max_num_seqs=32, max_num_batched_tokens=512, max_model_len=32768)


def blocks(
    *groups: GroupBytes,
    weight_bytes: int = GIB,
    max_model_len: int = 16000,
    wanted: int | None = None,
) -> tuple[int, ...]:
    """Of what half of 10 GiB leaves."""
    return num_kv_blocks(
        groups,
        Demand(BLOCK_SIZE, 1, 16, max_model_len),
        memory_bytes=10 * GIB,
        memory_fraction=0.5,
        weight_bytes=weight_bytes,
        wanted=wanted,
    )


def test_blocks_fill_what_the_fraction_leaves_beside_the_weights() -> None:
    assert blocks(GroupBytes(None, GIB // 4)) == (16,)


def test_no_more_blocks_than_could_be_used() -> None:
    assert blocks(GroupBytes(None, 1024), max_model_len=12 * BLOCK_SIZE) == (12,)


def test_more_blocks_than_fit_are_refused_with_the_figures() -> None:
    group = GroupBytes(None, GIB)
    assert blocks(group, wanted=4) == (4,)
    with pytest.raises(ValueError, match=r"num_kv_blocks must be at most 4.*not 5.*5\.00 GiB"):
        blocks(group, wanted=5)
    # A window of 33 tokens takes four blocks, of 1 GiB together.
    window = GroupBytes(33, GIB // 4)
    assert blocks(group, window, wanted=2) == (2, 2)
    with pytest.raises(ValueError, match=r"num_kv_blocks must be at most 3.*not 4.*5\.00 GiB"):
        blocks(group, window, wanted=4)


def test_no_room_is_an_error_with_the_figures() -> None:
    with pytest.raises(ValueError, match=r"7\.00 GiB of the 5\.00 GiB .* of 10\.00 GiB"):
        blocks(GroupBytes(None, 1024), weight_bytes=7 * GIB)


@given(
    widths=st.lists(st.none() | st.integers(1, 5000), unique=True, min_size=1, max_size=3),
    sizes=st.lists(st.integers(1, 100), min_size=3, max_size=3),
    num_bytes=st.integers(300, 10**7),
    max_num_seqs=st.integers(1, 64),
    max_num_batched_tokens=st.integers(64, 4096),
    max_model_len=st.integers(1, 10**5),
)
def test_the_split_fits_and_holds_the_longest_sequence_that_one_size_for_all_would(
    widths: list[int | None],
    sizes: list[int],
    num_bytes: int,
    max_num_seqs: int,
    max_num_batched_tokens: int,
    max_model_len: int,
) -> None:
    widths.sort(key=lambda width: (width is not None, -(width or 0)))
    groups = [GroupBytes(width, size) for width, size in zip(widths, sizes, strict=False)]
    demand = Demand(BLOCK_SIZE, max_num_seqs, max_num_batched_tokens, max_model_len)
    counts = split(groups, demand, num_bytes)
    each = [one.bytes_per_block for one in groups]
    assert sum(count * size for count, size in zip(counts, each, strict=True)) <= num_bytes
    assert min(counts) >= 1
    alike = min(num_bytes // sum(each), max_num_seqs * demand.blocks_of_longest)
    longest = min(alike * BLOCK_SIZE, max_model_len)
    for group, count in zip(groups, counts, strict=True):
        assert BlockGroup(BlockPool(count), BLOCK_SIZE, group.window).capacity_tokens >= longest
        assert count <= counts[0] or groups[0].window is not None


def test_a_model_without_attention_has_blocks_that_take_no_memory() -> None:
    assert blocks(GroupBytes(None, 0)) == (1000,)
    assert blocks(GroupBytes(None, 0), wanted=5) == (5,)


def gemma4(num_full: int, full: int, num_sliding: int, sliding: int) -> list[LayerAttention]:
    """Layers of Gemma 4's shape, with so many KV heads."""
    layers = [LayerAttention(LayerCacheSpec(full, 512, 512), 32, 1.0)] * num_full
    return layers + [LayerAttention(LayerCacheSpec(sliding, 256, 256), 32, 1.0, 1024)] * num_sliding


@pytest.mark.parametrize(
    ("layers", "before", "after"),
    [(gemma4(10, 4, 50, 16), 35_552, 143_327), (gemma4(5, 2, 25, 8), 171_536, 664_225)],
    ids=["31B", "26B-A4B"],
)
def test_tokens_that_fit_at_once_with_gemma4s_windows(
    layers: list[LayerAttention], before: int, after: int, capsys: pytest.CaptureFixture[str]
) -> None:
    """In the memory that holds ``before`` tokens of sequences of 32,768 with every window kept,
    there is room for more than ``after``, which vllm-metal makes of it."""

    def size(chosen: list[LayerAttention]) -> int:
        specs = [layer.cache for layer in chosen]
        return KVCachePool.bytes_per_block(specs, BLOCK_SIZE, mx.bfloat16)

    groups = [
        GroupBytes(group.window, size([layers[number] for number in group.layers]))
        for group in group_layers(layers)
    ]
    num_bytes = before // BLOCK_SIZE * size(layers)
    whole, windows = split(groups, DEMAND, num_bytes)
    at_once = windows // DEMAND.held_by_one(groups[1])
    tokens = min(whole * BLOCK_SIZE, at_once * DEMAND.max_model_len)
    with capsys.disabled():
        sys.stdout.write(
            f"\n{num_bytes / GIB:.1f} GiB: {before} tokens with windows kept, {tokens} with "
            f"windows freed ({whole} blocks), {at_once} windows at once ({windows} blocks)\n"
        )
    assert tokens >= after
    assert at_once * DEMAND.max_model_len >= after
