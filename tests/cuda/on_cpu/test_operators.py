"""The CUDA kernels and their dispatch code, on the emulator, against float64."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal.attention.head_dims import HEAD_DIMS, WIDE_HEAD_DIMS
from tests.cuda.on_cpu.extension import execution, operators
from tests.support.backend_metal import attention_oracle as oracle
from tests.support.backend_metal import native_cases
from tests.support.backend_metal.native_cases import DTYPES, make_case
from tests.support.fuzzing import fuzz
from tests.support.instantiations import marked

# Few, because a kernel takes a while to compile for each head dim and dtype; see the ladder.
SHAPES = [(mx.bfloat16, (128, 128)), (mx.float16, (64, 64)), (mx.float32, (64, 64))]
EVERY_SHAPE = [
    (dtype, dims)
    for dtype in DTYPES
    for dims in [*((dim, dim) for dim in HEAD_DIMS), (192, 128), (64, 256), *WIDE_HEAD_DIMS]
]
OF_THE_LADDER = [(mx.bfloat16, (256, 256)), (mx.float16, (192, 128)), (mx.bfloat16, (576, 512))]
STEPS: dict[str, dict[str, Any]] = {
    "decode": {"spans": [(1, 20), (1, 0), (1, 63), (1, 64), (1, 65)]},
    "splits": {"spans": [(1, 600), (1, 511), (1, 3)], "has_sinks": True},
    "prefill": {"spans": [(7, 9), (40, 30), (2, 0)], "block_size": 16},
    "mixed": {"spans": [(1, 300), (3, 90), (0, 5), (33, 0)], "softcap": 2.0, "has_sinks": True},
    "window": {"spans": [(1, 300), (70, 90)], "window": 33, "block_size": 32},
    "few keys": {"spans": [(9, -4), (1, 12), (3, -3), (1, -1)], "has_sinks": True},
    "skipped slots": {"spans": [(1, 20), (9, 11)], "skipped_slots": True, "shared_blocks": 1},
}


@pytest.fixture(autouse=True)
def on_the_emulator(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(native_cases, "native", operators())
    # MLX's buffers then start where the stand-in expects them.
    with mx.stream(mx.cpu):
        yield


DECODES: dict[str, dict[str, Any]] = {
    "short": {"spans": [(1, 20), (1, 0), (1, 63), (1, 64), (1, 65)]},
    "splits": {"spans": [(1, 600), (1, 511), (1, 3)], "has_sinks": True},
    "window": {"spans": [(1, 300), (1, 90)], "window": 33, "block_size": 32},
    "no keys": {"spans": [(1, 12), (1, -1)], "has_sinks": True},
    "skipped slots": {"spans": [(1, 20), (1, 11)], "skipped_slots": True, "shared_blocks": 1},
    "groups": {"spans": [(1, 90), (1, 20)], "heads": (2, 20)},
}


def case_of(dtype: mx.Dtype, head_dims: tuple[int, int], **step: Any) -> oracle.Case:
    step = {"seed": 5, "heads": (2, 3), "has_sinks": False} | step
    return make_case(dtype=dtype, head_dims=head_dims, **step)


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("dtype", "head_dims"), SHAPES)
def test_steps_match_float64(dtype: mx.Dtype, head_dims: tuple[int, int], step: str) -> None:
    with execution():
        native_cases.check(case_of(dtype, head_dims, **STEPS[step]))


@pytest.mark.parametrize("step", DECODES)
@pytest.mark.parametrize(("dtype", "head_dims"), SHAPES)
def test_decode_steps_match_float64(dtype: mx.Dtype, head_dims: tuple[int, int], step: str) -> None:
    case = case_of(dtype, head_dims, **DECODES[step])
    with execution():
        native_cases.check(case, decodes=True)
    with execution(backwards=True):
        native_cases.check(case, decodes=True)


@pytest.mark.parametrize("step", DECODES)
@pytest.mark.parametrize(("dtype", "head_dims"), SHAPES)
def test_decode_steps_that_read_ahead_match_float64(
    dtype: mx.Dtype, head_dims: tuple[int, int], step: str
) -> None:
    case = case_of(dtype, head_dims, **DECODES[step])
    with execution(backwards=True), step_loaded(case) as loaded:
        native_cases.check(case, decodes=True, **loaded)


@contextmanager
def step_loaded(case: oracle.Case) -> Iterator[dict[str, mx.array]]:
    """What a recorded step is launched with, in one buffer."""
    names = ("slot_mapping", "block_tables", "seq_lens", "cu_seqlens_q")
    arrays = {name: case.mlx()[name] for name in names}
    ints = mx.concatenate([array.flatten() for array in arrays.values()])
    ends = np.cumsum([array.size for array in arrays.values()]).tolist()
    views = {
        name: ints[end - array.size : end].reshape(array.shape)
        for (name, array), end in zip(arrays.items(), ends, strict=True)
    }
    mx.eval(ints, views)
    operators().remember_loaded(ints)
    assert all(operators().is_loaded(view) for view in views.values())
    try:
        yield views
    finally:
        operators().forget_loaded()


def kernels_of(case: oracle.Case) -> list[str]:
    """Of a decode step, whose result is right, and not the first of its thread."""
    native_cases.run(case, decodes=True)
    operators().take_nodes()
    out, _, _ = native_cases.run(case, decodes=True)
    nodes = operators().take_nodes()
    native_cases.check_out(case, out, native_cases.attention(case))
    return [kernel.split("_bfloat")[0] for kernel, *_ in nodes]


@pytest.mark.parametrize("step", ["short", "splits", "groups"])
def test_a_decode_step_is_one_launch(step: str) -> None:
    with execution():
        assert kernels_of(case_of(mx.bfloat16, (128, 128), **DECODES[step])) == ["decode"]


def test_a_row_of_many_splits_is_folded_by_a_block_of_its_own() -> None:
    many = case_of(mx.bfloat16, (128, 128), spans=[(1, 600), (1, 2900)], has_sinks=True)
    with execution(num_cores=132):
        assert kernels_of(many) == ["decode", "decode_reduce"]


@pytest.mark.parametrize("num_cores", [4, 32, 132])
def test_decodes_of_many_rows_match_float64(num_cores: int) -> None:
    """Of more rows than a warp has lanes; on the smallest device than it has room for."""
    lengths = np.random.default_rng(num_cores).integers(0, 700, 70).tolist()
    case = case_of(mx.float16, (64, 64), heads=(1, 2), spans=[(1, length) for length in lengths])
    with execution(num_cores=num_cores):
        native_cases.check(case, decodes=True)
    mixed = case_of(
        mx.float16,
        (64, 64),
        heads=(1, 2),
        spans=[(1 + index % 3 // 2, length) for index, length in enumerate(lengths)],
    )
    with execution(num_cores=num_cores, backwards=True):
        native_cases.check(mixed)


@pytest.mark.parametrize(
    ("num_seqs", "num_blocks"),
    [(6, 12), (7, 24), (8, 24), (9, 12), (13, 48)],
    ids=["room for two", "least room", "most room", "hardly any", "not at a time"],
)
def test_long_rows_that_leave_room_are_cut_into_more(num_seqs: int, num_blocks: int) -> None:
    """On a device that has room for 12 blocks; short ones, and those of short windows, are not."""
    step: dict[str, Any] = {"spans": [(1, 300)] * num_seqs, "block_size": 16}
    case = case_of(mx.float16, (64, 64), heads=(1, 2), **step)
    windowed = case_of(mx.float16, (64, 64), heads=(1, 2), window=2048, **step)
    tables = np.pad(case.block_tables, ((0, 0), (0, 200))).astype(np.int32)
    wide = {"block_tables": mx.array(tables)}

    def blocks_of(case: oracle.Case, **changed: mx.array) -> int:
        native_cases.check(case, decodes=True, **changed)
        operators().take_nodes()
        native_cases.check(case, decodes=True, **changed)
        return next(blocks for kernel, *_, blocks in operators().take_nodes() if "decode" in kernel)

    with execution(num_cores=4):
        assert blocks_of(case, **wide) == num_blocks
        if num_seqs <= 12:
            assert blocks_of(case) == 12
            assert blocks_of(windowed, **wide) == 12


def test_a_decode_beside_as_many_prompts_as_there_is_room_for_matches_float64() -> None:
    spans = [(1, 700), *[(2, 9)] * 11]
    with execution(num_cores=4):
        native_cases.check(case_of(mx.float16, (64, 64), heads=(1, 2), spans=spans))


def test_a_step_of_prompts_launches_no_decode() -> None:
    case = case_of(mx.float16, (64, 64), **STEPS["prefill"])
    with execution():
        operators().take_nodes()
        native_cases.run(case, prefills=True)
        nodes = operators().take_nodes()
        native_cases.check(case, prefills=True)
    kernels = [kernel.split("_half")[0] for kernel, *_ in nodes]
    assert kernels == ["prefill", "scatter_unsigned short"]


@pytest.mark.parametrize("step", ["splits", "mixed"])
@pytest.mark.parametrize(("dtype", "head_dims"), SHAPES)
def test_the_order_of_threads_and_kernels_is_free(
    dtype: mx.Dtype, head_dims: tuple[int, int], step: str
) -> None:
    case = case_of(dtype, head_dims, **STEPS[step])
    with execution():
        forwards = native_cases.as_numpy(native_cases.run(case)[0])
    with execution(backwards=True):
        backwards = native_cases.as_numpy(native_cases.run(case)[0])
    np.testing.assert_array_equal(forwards, backwards)


# Narrow values, one pair of which a lane folds of each split, up to the widest.
SPLIT_SHAPES = [
    (mx.float32, (64, 64)),
    (mx.bfloat16, (128, 128)),
    (mx.float16, (64, 80)),
    (mx.bfloat16, (256, 256)),
    (mx.float16, (576, 512)),
]


@pytest.mark.parametrize(("dtype", "head_dims"), SPLIT_SHAPES)
def test_splits_of_a_prefill_match_float64(dtype: mx.Dtype, head_dims: tuple[int, int]) -> None:
    case = case_of(dtype, head_dims, heads=(1, 2), spans=[(3, 5200), (40, 1100)], has_sinks=True)
    with execution():
        operators().take_nodes()
        native_cases.check(case)
    kernels = [kernel for kernel, *_ in operators().take_nodes()]
    assert any(kernel.startswith("prefill_reduce") for kernel in kernels)


@fuzz(25)
@given(
    seed=st.integers(0, 99),
    heads=st.sampled_from([(1, 1), (2, 3), (1, 8)]),
    spans=st.lists(
        st.tuples(st.sampled_from([1, 2, 9, 70]), st.sampled_from([0, 900, 1100, 2300, 9300])),
        min_size=1,
        max_size=3,
    ),
    window=st.sampled_from([None, None, 700, 1100, 2000]),
    num_cores=st.sampled_from([1, 2, 6, 40]),
    warpgroups=st.booleans(),
)
def test_any_splits_of_a_prefill_match_float64(
    seed: int,
    heads: tuple[int, int],
    spans: list[tuple[int, int]],
    window: int | None,
    num_cores: int,
    warpgroups: bool,
) -> None:
    options = {"spans": spans, "window": window, "has_sinks": seed % 3 == 0}
    case = case_of(mx.float16, (64, 64), seed=seed, heads=heads, **options)
    with execution(backwards=seed % 2 == 1, num_cores=num_cores, warpgroups=warpgroups):
        native_cases.check(case)


def test_a_prefills_row_does_not_depend_on_the_batch() -> None:
    spans = [(1, 600), (20, 300), (1, 3), (9, 1300), (50, 1100), (5, 40)]
    together = case_of(mx.float16, (64, 64), spans=spans)
    with execution():
        out = native_cases.as_numpy(native_cases.run(together)[0])
        for seq, (query, _) in enumerate(spans):
            if query == 1:
                continue
            rows = slice(together.cu_seqlens_q[seq], together.cu_seqlens_q[seq] + query)
            names = ("q", "k", "v", "slot_mapping")
            alone = oracle.replace(
                together,
                **{name: getattr(together, name)[rows] for name in names},
                block_tables=together.block_tables[seq : seq + 1],
                seq_lens=together.seq_lens[seq : seq + 1],
                cu_seqlens_q=np.array([0, query]),
            )
            got = native_cases.as_numpy(native_cases.run(alone)[0])
            np.testing.assert_array_equal(got, out[rows])


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(("dtype", "head_dims"), SHAPES)
def test_one_kernel_matches_float64(dtype: mx.Dtype, head_dims: tuple[int, int], step: str) -> None:
    case = case_of(dtype, head_dims, one_kernel=True, **STEPS[step])
    with execution():
        native_cases.check(case)
    with execution(backwards=True):
        operators().take_nodes()
        native_cases.check(case)
    kernels = {node[0].split("_", 1)[0] for node in operators().take_nodes()}
    assert kernels <= {"attend", "scatter", "pack"}


@fuzz(40)
@given(
    seed=st.integers(0, 99),
    kind=st.sampled_from(
        [(mx.bfloat16, (128, 128)), (mx.float16, (64, 64)), (mx.bfloat16, (256, 256))]
    ),
    heads=st.sampled_from([(2, 1), (2, 3), (1, 8), (1, 20)]),
    spans=st.lists(
        st.tuples(st.sampled_from([1, 2, 30]), st.integers(0, 300)), min_size=1, max_size=3
    ),
    own=st.tuples(st.integers(1, 60), st.integers(0, 300)),
    options=st.fixed_dictionaries(
        {
            "window": st.sampled_from([None, 1, 33, 100]),
            "softcap": st.sampled_from([None, 2.0]),
            "has_sinks": st.booleans(),
        }
    ),
    data=st.data(),
)
def test_in_one_kernel_a_token_gets_the_bits_that_it_gets_alone(
    seed: int,
    kind: tuple[mx.Dtype, tuple[int, int]],
    heads: tuple[int, int],
    spans: list[tuple[int, int]],
    own: tuple[int, int],
    options: dict[str, Any],
    data: st.DataObject,
) -> None:
    (dtype, head_dims), (num_tokens, before) = kind, own
    case = make_case(
        seed,
        heads,
        dtype=dtype,
        head_dims=head_dims,
        spans=[*spans, own],
        one_kernel=True,
        **options,
    )
    start = data.draw(st.integers(0, num_tokens - 1), label="start")
    stop = data.draw(st.sampled_from([start + 1, num_tokens]), label="stop")
    length = before + stop
    # Of tiles that no token of these sees there may be none in the table.
    gone = 0
    if options["window"] is not None:
        gone = max(before + start - options["window"] + 1, 0) // 64 * 64
    first = case.cu_seqlens_q[-2]
    rows = slice(first + start, first + stop)
    with execution(backwards=seed % 2 == 1):
        out, k_cache, v_cache = native_cases.run(case)
        among = native_cases.as_numpy(out)[rows]
        arrays = case.mlx()
        step = {
            "q": arrays["q"][rows],
            "block_tables": arrays["block_tables"][-1:, gone // case.k_cache.shape[1] :],
            "seq_lens": mx.array([length - gone], mx.int32),
            "cu_seqlens_q": mx.array([0, stop - start], mx.int32),
        }
        written = operators().paged_attention(
            **step, k_cache=k_cache, v_cache=v_cache, **case.mlx_options()
        )
        np.testing.assert_array_equal(native_cases.as_numpy(written), among)
        new = {name: arrays[name][rows] for name in ("k", "v", "slot_mapping")}
        alone, *_ = operators().scatter_paged_attention(
            **step, **new, k_cache=k_cache, v_cache=v_cache, **case.mlx_options()
        )
        np.testing.assert_array_equal(native_cases.as_numpy(alone), among)


@pytest.mark.parametrize("group", [1, 8, 16, 20])
def test_groups(group: int) -> None:
    spans = [(1, 90), (5, 20)]
    with execution():
        native_cases.check(case_of(mx.float16, (64, 64), heads=(2, group), spans=spans))


@pytest.mark.parametrize(("dtype", "head_dims"), SHAPES)
def test_any_strides(dtype: mx.Dtype, head_dims: tuple[int, int]) -> None:
    case = case_of(dtype, head_dims, spans=[(1, 20), (7, 9)])
    arrays = case.mlx()
    changed = {}
    with execution():
        for name in ("q", "k", "v"):
            for order in ((1, 0, 2), (2, 1, 0)):
                moved = mx.contiguous(arrays[name].transpose(*order))
                changed[name] = moved.transpose(*np.argsort(order).tolist())
                native_cases.check(case, **changed)
        changed["block_tables"] = mx.contiguous(arrays["block_tables"].T).T
        changed["seq_lens"] = mx.repeat(arrays["seq_lens"], 2)[::2]
        native_cases.check(case, **changed)
        for order in ((2, 0, 1, 3), (1, 2, 0, 3)):
            moved = mx.contiguous(arrays["k_cache"].transpose(*order))
            native_cases.check(case, k_cache=moved.transpose(*np.argsort(order).tolist()))


def test_caches_may_be_views_of_one_buffer_at_any_place() -> None:
    case = case_of(mx.float16, (64, 64), spans=[(1, 20), (7, 9)])
    buffer = np.full((*case.k_cache.shape[:3], 141), 9.0, np.float32)
    buffer[..., 3:67], buffer[..., 70:134] = case.k_cache, case.v_cache
    combined = mx.array(buffer).astype(mx.float16)
    with execution():
        native_cases.check(case, k_cache=combined[..., 3:67], v_cache=combined[..., 70:134])


def test_whoever_uses_a_cache_keeps_the_graphs_order() -> None:
    """MLX orders nobody behind a reader, so each kernel that reads a cache is to be its writer."""
    case = case_of(mx.float16, (64, 64), spans=[(1, 300), (70, 9)])
    with execution():
        # The first launch of all brings its stream's counters.
        native_cases.run(case)
        operators().take_nodes()
        _, k_cache, v_cache = native_cases.run(case)
        nodes = operators().take_nodes()
    kernels = [kernel for kernel, *_ in nodes]
    assert kernels[0].startswith("decode_half")
    assert kernels[1].startswith("prefill_half")
    assert kernels[-1].startswith("scatter")
    first = set(nodes[0][2])
    for kernel, inputs, outputs, *_ in nodes[1:]:
        assert len(first & set(outputs)) >= 2, kernel
        assert not set(inputs) & set(outputs), kernel
    assert [concurrent for *_, concurrent, _ in nodes] == [True, True] + [False] * (len(nodes) - 2)
    del k_cache, v_cache


def test_the_caches_stay_where_they_are() -> None:
    case = case_of(mx.float16, (64, 64), spans=[(1, 30), (4, 2)])
    arrays = case.mlx()
    mx.eval(list(arrays.values()))
    held = [arrays["k_cache"], arrays["v_cache"]]
    with execution():
        _, *caches = native_cases.run(case, **arrays)
    for before, after in zip(held, caches, strict=True):
        np.testing.assert_array_equal(native_cases.as_numpy(before), native_cases.as_numpy(after))
    native_cases.check_caches(caches, oracle.scatter(case))


@pytest.mark.parametrize("one_kernel", [False, True])
@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize(
    ("dtype", "head_dims"),
    marked(EVERY_SHAPE, lambda *shape: shape in OF_THE_LADDER),
)
def test_every_shape(
    dtype: mx.Dtype, head_dims: tuple[int, int], step: str, one_kernel: bool
) -> None:
    with execution():
        native_cases.check(case_of(dtype, head_dims, one_kernel=one_kernel, **STEPS[step]))
