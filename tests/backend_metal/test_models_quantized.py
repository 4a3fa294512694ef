"""Quantized checkpoints on the CPU: what stays so, how much memory it takes, and its logits."""

from __future__ import annotations

from pathlib import Path

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.afm7 import FusedLinear, FusedQuantizedLinear
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.utils import load_model

from backend_metal import native
from backend_metal.devices.cpu.quantized import NATIVE, can_stay_quantized, keep_quantized
from backend_metal.models.load.weights import convert
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.checkpoints import (
    ROUNDED,
    dense_logits,
    load_cpu,
    logits_of,
    save_quantized,
)
from tests.support.backend_metal.packed_step import relative_rms

FLOATING_POINT = {"mxfp4": (4, 32), "nvfp4": (4, 16), "mxfp8": (8, 32)}
HALVES = (mx.float16, mx.bfloat16)
EXACT = 1e-5
ROUTED = ("gpt_oss", "qwen3_moe")
"""Their routers are quantized by mlx-lm to 8 bits, whatever the rest is."""


def logits_of_mlx(directory: Path) -> np.ndarray:
    """In float32, whatever the checkpoint holds."""
    network, _ = load_model(directory)
    network.set_dtype(mx.float32)
    return dense_logits(network)


def stored_bytes(directory: Path) -> int:
    return sum(file.stat().st_size for file in directory.glob("model*.safetensors"))


@pytest.mark.parametrize("family", ["qwen3", "gemma3", "qwen2_moe", "gpt_oss", "phi3", "cohere2"])
@pytest.mark.parametrize(("bits", "group_size"), [(4, 64), (8, 32), (6, 32), (4, 32)])
def test_weights_stay_quantized_on_the_cpu(
    family: str, bits: int, group_size: int, tmp_path: Path
) -> None:
    save_quantized(family, tmp_path, bits=bits, group_size=group_size, dtype=mx.bfloat16)
    loaded = load_cpu(tmp_path)
    dense, _ = tiny_models.build(family)
    dense_bytes = sum(w.nbytes for _, w in tree_flatten(dense.parameters()))
    assert loaded.model.dtype == mx.float32
    assert loaded.weight_bytes < dense_bytes / 2
    lost = EXACT if bits == 6 and family not in ROUTED else ROUNDED
    assert relative_rms(logits_of(loaded), logits_of_mlx(tmp_path)) <= lost
    assert relative_rms(logits_of(loaded), dense_logits(dense)) > 0.001


@pytest.mark.parametrize("bits", [4, 8])
def test_weights_take_the_memory_of_the_file(bits: int, tmp_path: Path) -> None:
    """Norms, a few bytes of it, are float32."""
    save_quantized("qwen3", tmp_path, bits=bits, group_size=32, dtype=mx.bfloat16)
    assert load_cpu(tmp_path).weight_bytes <= 1.1 * stored_bytes(tmp_path)


def test_another_dtype_dequantizes(tmp_path: Path) -> None:
    save_quantized("qwen3", tmp_path, dtype=mx.bfloat16)
    loaded = load_cpu(tmp_path, dtype="bfloat16")
    assert loaded.model.dtype == mx.bfloat16
    assert loaded.weight_bytes > 2 * load_cpu(tmp_path).weight_bytes


@pytest.mark.parametrize("family", ["qwen3", "qwen3_moe", "gpt_oss"])
@pytest.mark.parametrize("mode", FLOATING_POINT)
def test_formats_without_a_kernel_are_dequantized(family: str, mode: str, tmp_path: Path) -> None:
    bits, group_size = FLOATING_POINT[mode]
    save_quantized(family, tmp_path, mode=mode, bits=bits, group_size=group_size)
    loaded = load_cpu(tmp_path)
    dense, _ = tiny_models.build(family)
    dense_bytes = sum(w.nbytes for _, w in tree_flatten(dense.parameters()))
    # The routers' format has a kernel.
    assert 0.99 * dense_bytes < loaded.weight_bytes <= dense_bytes
    lost = ROUNDED if family in ROUTED else EXACT
    assert relative_rms(logits_of(loaded), logits_of_mlx(tmp_path)) <= lost
    assert relative_rms(logits_of(loaded), dense_logits(dense)) > 0.01


def test_affine_ones_are_dequantized_for_a_processor_without_kernels(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_quantized("qwen3", tmp_path)
    kept = load_cpu(tmp_path)
    monkeypatch.setattr(native, "product_kernel", lambda: None)
    loaded = load_cpu(tmp_path)
    assert loaded.weight_bytes > 3 * kept.weight_bytes
    assert relative_rms(logits_of(loaded), logits_of_mlx(tmp_path)) <= EXACT
    assert relative_rms(logits_of(kept), logits_of_mlx(tmp_path)) <= ROUNDED


def test_formats_without_a_kernel_stay_where_memory_is_short(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    save_quantized("qwen3", tmp_path, mode="mxfp4")
    dense_bytes = load_cpu(tmp_path).weight_bytes
    loaded = load_cpu(tmp_path, memory_limit_bytes=dense_bytes)
    assert loaded.weight_bytes < dense_bytes / 4
    assert "has no kernel for the CPU" in caplog.text
    assert "50 times slower" in caplog.text
    assert relative_rms(logits_of(loaded), logits_of_mlx(tmp_path)) <= EXACT


def layer_pair(dense: nn.Module, bits: int, dtype: mx.Dtype) -> tuple[nn.Module, nn.Module]:
    """A layer of MLX in float32, and the one that is kept."""
    dense.set_dtype(dtype)
    kept, of_mlx = (dense.to_quantized(group_size=32, bits=bits) for _ in range(2))
    assert can_stay_quantized(kept)
    keep_quantized(kept)
    assert type(kept) in NATIVE.values()
    if "bias" in kept:
        kept.bias = kept.bias.astype(mx.float32)
    of_mlx.set_dtype(mx.float32)
    return of_mlx, kept


@pytest.mark.parametrize("bits", [3, 4, 5, 8])
@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("bias", [False, True])
def test_linear_layers(bits: int, dtype: mx.Dtype, bias: bool) -> None:
    of_mlx, kept = layer_pair(nn.Linear(96, 50, bias=bias), bits, dtype)
    x = mx.random.normal((3, 2, 96), key=mx.random.key(1))
    assert kept(x).dtype == mx.float32
    assert relative_rms(np.array(kept(x)), np.array(of_mlx(x))) <= EXACT


@pytest.mark.parametrize("bits", [2, 3, 4, 5, 6, 8])
@pytest.mark.parametrize("dtype", [*HALVES, mx.float32])
def test_embeddings(bits: int, dtype: mx.Dtype) -> None:
    of_mlx, kept = layer_pair(nn.Embedding(70, 64), bits, dtype)
    tokens = mx.array([[3, 0], [69, 3]])
    assert kept(tokens).dtype == mx.float32
    assert relative_rms(np.array(kept(tokens)), np.array(of_mlx(tokens))) <= 1e-6
    x = mx.random.normal((5, 64), key=mx.random.key(1))
    assert relative_rms(np.array(kept.as_linear(x)), np.array(of_mlx.as_linear(x))) <= ROUNDED


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("is_sorted", [False, True])
@pytest.mark.parametrize("shape", [(5, 1, 1), (5, 1, 3)])
def test_experts(bias: bool, is_sorted: bool, shape: tuple[int, ...]) -> None:
    """``shape`` of the inputs: one for all of a token's experts, or one for each."""
    of_mlx, kept = layer_pair(SwitchLinear(64, 40, 6, bias=bias), 4, mx.bfloat16)
    if bias:
        of_mlx.bias = kept.bias = mx.random.normal((6, 40), key=mx.random.key(2))
    x = mx.random.normal((*shape, 1, 64), key=mx.random.key(1))
    indices = mx.random.randint(0, 6, (5, 1, 3), key=mx.random.key(3)).astype(mx.uint32)
    if is_sorted:
        x, indices = mx.broadcast_to(x, (5, 1, 3, 1, 64)).reshape(15, 1, 64), indices.flatten()
        indices = mx.sort(indices)
    expected, out = (layer(x, indices, is_sorted) for layer in (of_mlx, kept))
    assert out.shape == expected.shape
    assert relative_rms(np.array(out), np.array(expected)) <= ROUNDED


def test_subclasses_and_other_formats_keep_their_ways() -> None:
    class Own(nn.QuantizedLinear):  # type: ignore[misc]
        pass

    assert can_stay_quantized(nn.QuantizedLinear(64, 32))
    assert not can_stay_quantized(Own(64, 32))
    assert not can_stay_quantized(nn.QuantizedLinear(64, 32, mode="mxfp4"))
    assert not can_stay_quantized(nn.Linear(64, 32))


def test_afms_quantized_layers_are_dequantized_as_what_they_are() -> None:
    fused = FusedQuantizedLinear(64, [32, 64], group_size=32, bits=3)
    model = nn.Module()
    model.layer = fused
    x = mx.random.normal((2, 64), key=mx.random.key(1))
    expected = [np.array(part) for part in fused(x)]
    convert(model, dtype=mx.float32, on_cpu=True, memory_limit_bytes=2**30)
    assert type(model.layer) is FusedLinear
    for part, wanted in zip(model.layer(x), expected, strict=True):
        np.testing.assert_allclose(np.array(part), wanted, rtol=1e-4, atol=1e-5)
