"""On a Mac or beside an NVIDIA GPU: every kind of kernel agrees with float64 there, models with
mlx-lm, and the engine uses the kernels."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from mlx.utils import tree_map
from mlx_lm.models.activations import swiglu

from backend_metal import LLM, SamplingParams
from backend_metal.attention.checks import BLOCK_SIZES, DTYPES
from backend_metal.attention.head_dims import HEAD_DIMS, WIDE_HEAD_DIMS
from backend_metal.attention.kv_cache import LayerAttention, LayerCacheSpec
from backend_metal.attention.self_check import check_path
from backend_metal.device import GPU, device_on, select_device
from backend_metal.devices.extension import GPU_HEAD_DIMS
from deployments.backend import AttentionStatus
from tests.support.backend_metal import (
    native_cases,
    pending_cases,
    recurrent_oracle,
    rotate_heads_cases,
    row_cases,
    tiny_models,
)
from tests.support.backend_metal.dense import (
    median_error,
    mixed_batches,
    mixed_batches_dense,
    worst_error,
)
from tests.support.backend_metal.native_cases import options, short_spans
from tests.support.backend_metal.recurrent_cases import (
    CONVOLUTIONS,
    TOLERANCES,
    check_conv,
    check_linear_attention,
)
from tests.support.backend_metal.tiny_configs import FAMILY_CONFIGS, VARIANTS
from tests.support.fuzzing import fuzz

# MLX reads it with its first float32 matmul: TensorFloat-32 is less exact than these tests ask.
os.environ["MLX_ENABLE_TF32"] = "0"

if GPU is None:
    pytest.skip("needs Apple silicon, or an NVIDIA GPU and MLX for CUDA", allow_module_level=True)
NAME, OPERATORS = GPU.name, GPU.operators
KERNELS = GPU.recurrent

LOGITS_TOLERANCES = {mx.float32: 1e-4, mx.float16: 4e-3, mx.bfloat16: 3e-2}

CHOOSES = re.compile("experts|index_topk")
"""Of a config: experts, or keys to attend to, are chosen for each token. In half precision a
rounding may choose others: that token is then as wrong as can be, and all behind it are less right,
which read its keys, or a state that it is in."""

OPTIONS: list[dict[str, object]] = [
    {},
    {"window": 128},
    {"softcap": 50.0},
    {"has_sinks": True},
    {"window": 4096, "softcap": 30.0, "has_sinks": True},
]


@pytest.fixture(autouse=True, scope="module")
def native_cases_run_on_the_gpu() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(native_cases, "native", OPERATORS)
        select_device(NAME)
        yield


@fuzz(600)
@given(
    **options,
    spans=short_spans,
    shared_blocks=st.integers(0, 3),
    skipped_slots=st.booleans(),
    magnitude=st.sampled_from([0.0, 1.0, 8.0]),
)
def test_any_step_matches_float64(**arguments: Any) -> None:
    native_cases.check(native_cases.make_case(**arguments))


@fuzz(100)
@given(
    **options | {"heads": st.sampled_from([(1, 1), (1, 4), (2, 8), (1, 16)])},
    spans=st.tuples(st.sampled_from([1, 1, 2, 17]), st.integers(500, 9000)).map(
        lambda span: [span, (1, 3)]
    ),
)
def test_long_contexts_match_float64(**arguments: Any) -> None:
    native_cases.check(native_cases.make_case(**arguments))


def test_the_machine_has_kernels_of_its_own() -> None:
    assert select_device("auto").attention == NAME


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 7, 8, 12, 16, 20])
@pytest.mark.parametrize(
    "head_dims", [*((dim, dim) for dim in HEAD_DIMS), (192, 128), *WIDE_HEAD_DIMS]
)
def test_shapes(head_dims: tuple[int, int], group: int, dtype: mx.Dtype) -> None:
    layer = LayerAttention(LayerCacheSpec(2, *head_dims), 2 * group, head_dims[0] ** -0.5)
    check_path(select_device(NAME), [layer], 16, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("options", OPTIONS)
def test_options(options: dict[str, object], block_size: int, dtype: mx.Dtype) -> None:
    layer = LayerAttention(LayerCacheSpec(2, 128, 128), 8, 128**-0.5, **options)
    check_path(select_device(NAME), [layer], block_size, dtype)


def test_the_engine_serves_with_them() -> None:
    llm = LLM("demo", attention=NAME)
    assert llm.engine.attention == AttentionStatus(NAME, "passed the check at start", NAME)
    greedy = SamplingParams(temperature=0.0, max_tokens=24)
    (completion,) = llm.generate(["Pomona is"], greedy, show_progress=False)
    reference = LLM("demo", attention="reference")
    assert reference.generate(["Pomona is"], greedy, show_progress=False)[0].text == completion.text


@fuzz(200)
@given(**CONVOLUTIONS)
def test_any_convolution_matches_float64(layout: recurrent_oracle.Layout, **case: Any) -> None:
    check_conv(KERNELS, layout, **case)


@fuzz(200)
@given(
    layout=recurrent_oracle.layouts(),
    heads=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    dims=st.tuples(st.sampled_from(GPU_HEAD_DIMS), st.one_of(st.integers(1, 40), st.just(128))),
    channel_gates=st.booleans(),
    gates_are_rates=st.booleans(),
    delta_rule=st.booleans(),
    is_part=st.booleans(),
    dtype=st.sampled_from(list(TOLERANCES)),
    seed=st.integers(0, 2**16),
)
def test_any_linear_attention_matches_float64(layout: recurrent_oracle.Layout, **case: Any) -> None:
    check_linear_attention(KERNELS, layout, **case)


# Of fewer dims MLX's own rotation asks CUDA for blocks deeper than there are.
@fuzz(200)
@given(case=rotate_heads_cases.cases(most_tokens=300).filter(lambda case: case.dims >= 32))
def test_any_heads_are_rotated_as_by_mlx(case: rotate_heads_cases.Case) -> None:
    rotate = device_on(mx.default_device()).rotate_heads
    assert rotate is not None
    rotate_heads_cases.check(rotate, case, is_exact=False)


@pytest.mark.parametrize("name", ["MANY", "SEVERAL", "UNEVEN"])
def test_many_heads_are_rotated_as_by_mlx(name: str) -> None:
    rotate = device_on(mx.default_device()).rotate_heads
    assert rotate is not None
    rotate_heads_cases.check(rotate, getattr(rotate_heads_cases, name), is_exact=False)


@fuzz(200)
@given(case=row_cases.cases(most_rows=40))
def test_any_sums_and_norms_have_mlxs_bits(case: row_cases.Case) -> None:
    rows = device_on(mx.default_device()).rows
    if rows is None:
        pytest.skip("no kernels of rows")
    row_cases.check_norm(rows, case, expected=row_cases.mlx_norm, most_ulps=0)


@fuzz(200)
@given(case=row_cases.cases(most_rows=8, most_dims=5))
def test_any_activations_are_mlxs(case: row_cases.Case) -> None:
    rows = device_on(mx.default_device()).rows
    if rows is None:
        pytest.skip("no kernels of rows")
    # Exponentials of halves are approximate in MLX's.
    row_cases.check_silu(rows, case, expected=swiglu, most_ulps=4)


@fuzz(100)
@given(case=pending_cases.cases)
def test_any_drawn_tokens_are_filled_in(case: pending_cases.Case) -> None:
    pending_cases.check(device_on(mx.default_device()).fill_in, case)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("options", OPTIONS)
def test_decode_steps_match_float64(options: dict[str, object], dtype: mx.Dtype) -> None:
    spans = [(1, 20), (1, 0), (1, 700), (1, 5000)]
    sinks = bool(options.get("has_sinks"))
    own = {name: value for name, value in options.items() if name != "has_sinks"}
    case = native_cases.make_case(
        7, (2, 4), sinks, dtype=dtype, head_dims=(128, 128), spans=spans, **own
    )
    native_cases.check(case, decodes=True)


@pytest.mark.parametrize("dtype", LOGITS_TOLERANCES)
@pytest.mark.parametrize("family", sorted({*FAMILY_CONFIGS, *VARIANTS} - {"gemma2"}))
def test_models_are_as_exact_as_mlx_lm(family: str, dtype: mx.Dtype) -> None:
    """Where that is off by more, by twice as much."""
    if family == "bitnet" and NAME == "cuda":
        pytest.skip("MLX for CUDA has no product of its 2-bit matrices")
    network, config = tiny_models.build(family)
    network.set_dtype(dtype)
    own = mixed_batches_dense(network)
    exact_network, _ = tiny_models.build(family)
    exact_network.update(tree_map(_exact, network.parameters()))
    exact = mixed_batches_dense(exact_network)
    if not all(np.isfinite(rows).all() for rows in own):
        pytest.skip(f"mlx-lm's own logits overflow in {dtype}")
    _, actual = mixed_batches(network, config)
    is_half = dtype != mx.float32
    error = median_error if is_half and CHOOSES.search(str(config)) else worst_error
    assert error(actual, exact) <= max(LOGITS_TOLERANCES[dtype], 2 * error(own, exact))


def _exact(array: mx.array) -> mx.array:
    return array.astype(mx.float32) if mx.issubdtype(array.dtype, mx.floating) else array
