"""Prefill by warpgroups, on the emulator of a GPU that has them, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest

from backend_metal.attention.head_dims import HEAD_DIMS
from tests.cuda.on_cpu.extension import execution, operators
from tests.support.backend_metal import attention_oracle as oracle
from tests.support.backend_metal import native_cases
from tests.support.backend_metal.native_cases import make_case
from tests.support.instantiations import marked

SHAPES = [(mx.bfloat16, (128, 128)), (mx.float16, (64, 64))]
EVERY_SHAPE = [
    (dtype, dims)
    for dtype in (mx.bfloat16, mx.float16)
    for dims in [*((dim, dim) for dim in HEAD_DIMS), (192, 128), (64, 256), (256, 64), (80, 192)]
    if (dtype, dims) not in SHAPES
]
OF_THE_LADDER = [(mx.bfloat16, (256, 256)), (mx.float16, (192, 128)), (mx.bfloat16, (80, 80))]
# With more keys than the stages of shared memory hold, and rows that leave a tile partly empty.
STEPS: dict[str, dict[str, Any]] = {
    "prefill": {"spans": [(7, 9), (70, 640), (2, 0)], "block_size": 16},
    "window": {"spans": [(1, 300), (70, 490)], "window": 133, "block_size": 32},
    "mixed": {"spans": [(1, 300), (3, 90), (0, 5), (33, 0)], "softcap": 2.0, "has_sinks": True},
    "splits": {"spans": [(5, 2500), (100, 1100), (9, 40)], "has_sinks": True},
    "few keys": {"spans": [(9, -4), (1, 12), (3, -3), (1, -1)], "has_sinks": True},
    "skipped slots": {"spans": [(1, 20), (9, 301)], "skipped_slots": True, "shared_blocks": 1},
}


@pytest.fixture(autouse=True)
def on_the_emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(native_cases, "native", operators())
    with mx.stream(mx.cpu):
        yield


def case_of(dtype: mx.Dtype, head_dims: tuple[int, int], **step: Any) -> oracle.Case:
    step = {"heads": (1, 2), "has_sinks": False} | step
    return make_case(5, dtype=dtype, head_dims=head_dims, **step)


def kernels_of(case: oracle.Case, **changed: Any) -> list[str]:
    operators().take_nodes()
    native_cases.run(case, **changed)
    return [kernel for kernel, *_ in operators().take_nodes()]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("dtype", "head_dims"), SHAPES)
def test_steps_match_float64(dtype: mx.Dtype, head_dims: tuple[int, int], step: str) -> None:
    case = case_of(dtype, head_dims, **STEPS[step])
    with execution(warpgroups=True):
        assert any(kernel.startswith("warpgroup_prefill") for kernel in kernels_of(case))
        native_cases.check(case)


def test_splits_of_a_window_match_float64() -> None:
    case = case_of(mx.float16, (64, 64), spans=[(3, 2200), (100, 1050)], window=1100)
    with execution(warpgroups=True):
        assert any(kernel.startswith("prefill_reduce") for kernel in kernels_of(case))
        native_cases.check(case)


@pytest.mark.parametrize("step", ["prefill", "splits"])
def test_the_order_of_threads_and_kernels_is_free(step: str) -> None:
    case = case_of(mx.float16, (64, 64), **STEPS[step])
    with execution(warpgroups=True):
        forwards = native_cases.as_numpy(native_cases.run(case)[0])
    with execution(warpgroups=True, backwards=True):
        backwards = native_cases.as_numpy(native_cases.run(case)[0])
    np.testing.assert_array_equal(forwards, backwards)


def test_a_row_does_not_depend_on_the_rows_of_its_tile() -> None:
    """A sequence's last tokens, alone and behind others of its own and of other sequences."""
    together = case_of(mx.float16, (64, 64), spans=[(30, 200), (50, 380)])
    first, last = 30 + 50 - 20, 30 + 50
    with execution(warpgroups=True):
        out, k_cache, v_cache = native_cases.run(together)
        arrays = together.mlx()
        alone = operators().paged_attention(
            q=arrays["q"][first:last],
            k_cache=k_cache,
            v_cache=v_cache,
            block_tables=arrays["block_tables"][1:],
            seq_lens=arrays["seq_lens"][1:],
            cu_seqlens_q=mx.array([0, last - first], mx.int32),
            **together.mlx_options(),
        )
        mx.eval(alone)
    np.testing.assert_array_equal(
        native_cases.as_numpy(alone), native_cases.as_numpy(out)[first:last]
    )


def test_work_of_many_sequences_is_shared_out_by_every_launch_anew() -> None:
    """More sequences than a warp has lanes, a few of them a decode's; more tiles than blocks."""
    spans = [(1 + i * 7 % 23, i * 5) for i in range(40)]
    case = case_of(mx.float16, (64, 64), heads=(1, 4), spans=spans, block_size=16)
    with execution(warpgroups=True):
        native_cases.check(case)
        first, second = (native_cases.as_numpy(native_cases.run(case)[0]) for _ in range(2))
    np.testing.assert_array_equal(first, second)


@pytest.mark.parametrize("group", [1, 7, 16])
def test_groups(group: int) -> None:
    case = case_of(mx.float16, (64, 64), heads=(2, group), spans=[(1, 90), (15, 20)])
    with execution(warpgroups=True):
        native_cases.check(case)


def test_heads_whose_keys_fill_the_cache_of_a_gpu_run_one_after_another() -> None:
    """Tables with room for 48,000 tokens, of 12 MB a head."""
    case = case_of(mx.float16, (64, 64), heads=(2, 2), spans=[(9, 20), (70, 90)], block_size=16)
    tables = np.pad(case.block_tables, ((0, 0), (0, 3000)))
    with execution(warpgroups=True):
        native_cases.check(case, block_tables=mx.array(tables.astype(np.int32)))


def test_any_strides() -> None:
    case = case_of(mx.float16, (64, 64), spans=[(1, 20), (17, 9)])
    arrays = case.mlx()
    with execution(warpgroups=True):
        moved = {
            name: mx.contiguous(arrays[name].transpose(1, 0, 2)).transpose(1, 0, 2)
            for name in ("q", "k", "v")
        }
        caches = {
            name: mx.contiguous(arrays[name].transpose(2, 0, 1, 3)).transpose(1, 2, 0, 3)
            for name in ("k_cache", "v_cache")
        }
        native_cases.check(case, **moved, **caches)


@pytest.mark.parametrize("heads", [1, 3, 32])
def test_a_prefill_writes_the_tokens_of_the_step(heads: int) -> None:
    """A decode's, too; more of them than the blocks keep on their way at a time."""
    spans = [(1, 90), (70, 20), (2, 0)]
    case = case_of(mx.bfloat16, (64, 96), heads=(heads, 1), spans=spans, skipped_slots=True)
    with execution(warpgroups=True):
        assert not any(kernel.startswith("scatter") for kernel in kernels_of(case))
        native_cases.check(case)


def test_tokens_whose_heads_are_apart_or_too_many_are_written_by_a_kernel_of_their_own() -> None:
    apart = case_of(mx.float16, (64, 64), heads=(2, 1), spans=[(17, 9)])
    arrays = apart.mlx()
    values = mx.contiguous(arrays["v"].transpose(1, 0, 2)).transpose(1, 0, 2)
    many = case_of(mx.float16, (64, 64), heads=(72, 1), spans=[(3, 5)])
    with execution(warpgroups=True):
        assert kernels_of(apart, v=values)[-1].startswith("scatter")
        native_cases.check(apart, v=values)
        assert kernels_of(many)[-1].startswith("scatter")
        native_cases.check(many)


def test_what_warpgroups_cannot_multiply_is_left_to_warps() -> None:
    """Elements of 4 bytes, and rows that do not start at multiples of 16 bytes."""
    spans = [(9, 20)]
    case = case_of(mx.float16, (64, 64), spans=spans)
    buffer = np.full((*case.k_cache.shape[:3], 141), 9.0, np.float32)
    buffer[..., 3:67], buffer[..., 70:134] = case.k_cache, case.v_cache
    combined = mx.array(buffer).astype(mx.float16)
    views = {"k_cache": combined[..., 3:67], "v_cache": combined[..., 70:134]}
    with execution(warpgroups=True):
        assert kernels_of(case)[0] == "warpgroup_prefill_half_64_64"
        assert kernels_of(case, **views)[0] == "prefill_half_64_64"
        single = case_of(mx.float32, (64, 64), spans=spans)
        assert kernels_of(single)[0] == "prefill_float_64_64"
    with execution(warpgroups=False):
        assert kernels_of(case)[0] == "prefill_half_64_64"


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("dtype", "head_dims"),
    marked(EVERY_SHAPE, lambda *shape: shape in OF_THE_LADDER),
)
def test_every_shape(dtype: mx.Dtype, head_dims: tuple[int, int], step: str) -> None:
    with execution(warpgroups=True):
        native_cases.check(case_of(dtype, head_dims, **STEPS[step]))
