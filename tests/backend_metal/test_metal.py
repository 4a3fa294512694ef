"""On a Mac: every kind of kernel agrees with the reference on its GPU, and the engine uses them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import mlx.core as mx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from backend_metal import LLM, SamplingParams, native
from backend_metal.attention.checks import BLOCK_SIZES, DTYPES
from backend_metal.attention.head_dims import HEAD_DIMS, WIDE_HEAD_DIMS
from backend_metal.attention.kv_cache import LayerAttention, LayerCacheSpec
from backend_metal.attention.self_check import check_path
from backend_metal.device import select_device
from deployments.backend import AttentionStatus
from tests.support.backend_metal import native_cases
from tests.support.backend_metal.native_cases import fuzz, options, short_spans

if not mx.metal.is_available():
    pytest.skip("needs a Mac with Apple silicon", allow_module_level=True)

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
        patch.setattr(native_cases, "native", native.metal)
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


def test_a_mac_has_kernels_of_its_own() -> None:
    assert select_device("auto").path.name == "metal"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 7, 8, 12, 16, 20])
@pytest.mark.parametrize(
    "head_dims", [*((dim, dim) for dim in HEAD_DIMS), (192, 128), *WIDE_HEAD_DIMS]
)
def test_shapes(head_dims: tuple[int, int], group: int, dtype: mx.Dtype) -> None:
    layer = LayerAttention(LayerCacheSpec(2, *head_dims), 2 * group, head_dims[0] ** -0.5)
    check_path(select_device("metal").path, [layer], 16, dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("block_size", BLOCK_SIZES)
@pytest.mark.parametrize("options", OPTIONS)
def test_options(options: dict[str, object], block_size: int, dtype: mx.Dtype) -> None:
    layer = LayerAttention(LayerCacheSpec(2, 128, 128), 8, 128**-0.5, **options)
    check_path(select_device("metal").path, [layer], block_size, dtype)


def test_the_engine_serves_with_them() -> None:
    llm = LLM("demo", attention="metal")
    assert llm.engine.attention == AttentionStatus("metal", "passed the check at start", "metal")
    greedy = SamplingParams(temperature=0.0, max_tokens=24)
    (completion,) = llm.generate(["Pomona is"], greedy, show_progress=False)
    reference = LLM("demo", attention="reference")
    assert reference.generate(["Pomona is"], greedy, show_progress=False)[0].text == completion.text
