"""What ``engine.deterministic`` asks of a model on CUDA, and how it is refused."""

from __future__ import annotations

import logging
from functools import partial

import mlx.core as mx
import mlx.nn as nn
import pytest

from backend_metal.cuda import rows_alike
from backend_metal.cuda.few_rows_products import MOST_ROWS
from backend_metal.cuda.rows_alike import check_rows_alike, multiply_alike
from backend_metal.models.paged_model import PagedModel
from tests.support.backend_metal import tiny_models

OF_THE_CPU = {"AddRMSNorm", "Exponential", "RMSNorm", "RotaryEmbedding", "Sum", "SwiGLU"}
"""What stands on a CPU where CUDA has primitives that may be there."""


class Kernel:
    """A product by other primitives than MLX's products, and of how many rows it was."""

    def __init__(self, factor: float = 1.0) -> None:
        self.factor = factor
        self.rows: list[int] = []

    def __call__(self, x: mx.array, weights: mx.array) -> mx.array:
        self.rows.append(x.size // x.shape[-1])
        floats = x.astype(mx.float32)[..., None, :] * weights.astype(mx.float32)
        return (self.factor * mx.sum(floats, axis=-1)).astype(x.dtype)


@pytest.fixture
def on_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows_alike, "ALIKE", rows_alike.ALIKE | OF_THE_CPU)


def paged(family: str, dtype: mx.Dtype = mx.bfloat16, *, bits: int | None = None) -> PagedModel:
    network, config = tiny_models.build(family)
    network.set_dtype(dtype)
    if bits is not None:
        nn.quantize(network, group_size=32, bits=bits)
    # Else matrices lie as a CPU's kernels read them.
    return PagedModel(network, config, fuse=dtype != mx.float32)


# With tied heads and others, biases, norms of heads, windows and softcaps.
@pytest.mark.parametrize(
    "family", ["cohere2", "gemma2", "gemma3", "llama", "olmo2", "phi3", "qwen2", "qwen3"]
)
@pytest.mark.usefixtures("on_the_cpu")
def test_a_dense_model_has_all_products_from_the_kernel(family: str) -> None:
    kernel = Kernel()
    paged(family).multiply_alike(partial(multiply_alike, kernel))
    assert max(kernel.rows) > MOST_ROWS


@pytest.mark.parametrize(
    ("family", "reason"),
    [
        ("qwen3_moe", "experts"),
        ("gpt_oss", "experts"),
        ("deepseek_v3", "in no plain layer"),
        ("qwen3_next", "a model with recurrent layers"),
        ("lfm2", "a model with recurrent layers"),
    ],
)
@pytest.mark.usefixtures("on_the_cpu")
def test_another_model_is_refused(family: str, reason: str) -> None:
    with pytest.raises(ValueError, match=rf"engine\.deterministic must be false for .*{reason}"):
        paged(family).multiply_alike(partial(multiply_alike, Kernel()))


@pytest.mark.usefixtures("on_the_cpu")
def test_other_matrices_are_refused() -> None:
    with pytest.raises(ValueError, match=r"engine\.deterministic must be .* float16 or bfloat16"):
        paged("qwen3", mx.float32).multiply_alike(partial(multiply_alike, Kernel()))
    quantized = paged("qwen3", bits=4)
    with pytest.raises(ValueError, match=r"engine\.deterministic must be .*quantized matrices"):
        quantized.multiply_alike(partial(multiply_alike, Kernel()))


@pytest.mark.usefixtures("on_the_cpu")
def test_a_kernel_that_is_wrong_is_refused(caplog: pytest.LogCaptureFixture) -> None:
    model = paged("qwen3")
    with (
        caplog.at_level(logging.ERROR),
        pytest.raises(ValueError, match=r"engine\.deterministic must be false on this machine"),
    ):
        model.multiply_alike(partial(multiply_alike, Kernel(1.1)))
    assert "The kernel for any number of rows" in caplog.text


def test_what_is_not_known_to_be_alike_is_told() -> None:
    x = mx.ones((3, 8))
    check_rows_alike([nn.silu(x) + x[::-1]])
    with pytest.raises(ValueError, match=r"where MLX's ArgSort, and MLX's Sum may give"):
        check_rows_alike([mx.sum(x, axis=-1), mx.argsort(x)])
    # Of several in one, as mlx-lm's activations are.
    check_rows_alike([mx.compile(lambda x: mx.tanh(x) * x)(x)])
