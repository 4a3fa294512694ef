"""On a Mac: every kind of kernel agrees with the reference on its GPU, and the engine uses them."""

from __future__ import annotations

import mlx.core as mx
import pytest

from backend_metal import LLM, SamplingParams
from backend_metal.attention_checks import BLOCK_SIZES, DTYPES, HEAD_DIMS, LATENT_HEAD_DIMS
from backend_metal.device import select_device
from backend_metal.kv_cache import LayerAttention, LayerCacheSpec
from backend_metal.self_check import check_path
from deployments.backend import AttentionStatus

if not mx.metal.is_available():
    pytest.skip("needs a Mac with Apple silicon", allow_module_level=True)

OPTIONS: list[dict[str, object]] = [
    {},
    {"window": 128},
    {"softcap": 50.0},
    {"has_sinks": True},
    {"window": 4096, "softcap": 30.0, "has_sinks": True},
]


def test_a_mac_has_kernels_of_its_own() -> None:
    assert select_device("auto").path.name == "metal"


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", [1, 2, 3, 4, 5, 7, 8, 12, 16, 20])
@pytest.mark.parametrize(
    "head_dims", [*((dim, dim) for dim in HEAD_DIMS), (192, 128), LATENT_HEAD_DIMS]
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
    assert llm.engine.attention == AttentionStatus("metal", "passed the check at start")
    greedy = SamplingParams(temperature=0.0, max_tokens=24)
    (completion,) = llm.generate(["Pomona is"], greedy, show_progress=False)
    reference = LLM("demo", attention="reference")
    assert reference.generate(["Pomona is"], greedy, show_progress=False)[0].text == completion.text
