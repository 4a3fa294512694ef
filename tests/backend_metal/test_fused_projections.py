"""Projections of one input: each has the outputs that it has alone, of fewer products."""

from __future__ import annotations

import gc
import io
import re
from collections.abc import Callable, Sequence
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest
from mlx.utils import tree_flatten
from mlx_lm.models.switch_layers import SwitchLinear
from mlx_lm.tuner.lora import LoRALinear

from backend_metal.attention.kv_cache import KVCachePool
from backend_metal.devices.cpu.quantized import keep_quantized
from backend_metal.models.families.table import FAMILIES
from backend_metal.models.layers.fused_projections import (
    fuse_projections,
    joined_layers,
    separate_unshared,
)
from backend_metal.models.paged_model import PagedModel
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.checkpoints import TABLE, TOKENS, dense_logits
from tests.support.backend_metal.packed_step import Chunk, forward, relative_rms

DEPTH = 128
SIZES = (96, 32, 40)
NAMES = ("q_proj", "k_proj", "v_proj")
PRODUCTS = "Matmul|AddMM|QuantizedMatmul|QuantizedProduct|GatherMM|GatherQMM"
Make = Callable[[int], nn.Module]

NOTHING_TO_FUSE = (
    *("dbrx", "gpt2", "gpt_bigcode", "gpt_neox", "mamba", "mamba2", "openelm", "phi3", "phixtral"),
    *("plamo2", "qwen", "rwkv7"),
)


class Attention(nn.Module):  # type: ignore[misc]
    def __init__(self, layers: Sequence[nn.Module]) -> None:
        super().__init__()
        self.q_proj, self.k_proj, self.v_proj = layers

    def __call__(self, *inputs: mx.array) -> list[mx.array]:
        return [self[name](*inputs) for name in NAMES]


def num_products(*outputs: mx.array) -> int:
    graph = io.StringIO()
    mx.export_to_dot(graph, *outputs)
    return len(re.findall(rf'"(?:{PRODUCTS})"', graph.getvalue()))


def normal(*shape: int, seed: int = 0) -> mx.array:
    return mx.random.normal(shape, key=mx.random.key(seed))


def quantized(
    bits: int = 4, group_size: int = 32, mode: str = "affine", bias: bool = False
) -> Make:
    def make(rows: int) -> nn.Module:
        return nn.Linear(DEPTH, rows, bias).to_quantized(group_size, bits, mode)

    return make


def native(make: Make) -> Make:
    def kept(rows: int) -> nn.Module:
        layer = make(rows)
        keep_quantized(layer)
        return layer

    return kept


def experts(bias: bool, bits: int | None = None) -> Make:
    def make(rows: int) -> nn.Module:
        layer = SwitchLinear(DEPTH, rows, 6, bias)
        if bias:
            layer.bias = normal(6, rows)
        return layer if bits is None else layer.to_quantized(32, bits)

    return make


LINEAR: dict[str, Make] = {
    "dense": lambda rows: nn.Linear(DEPTH, rows, bias=False),
    "dense-bias": lambda rows: nn.Linear(DEPTH, rows),
    "mxfp4": quantized(4, 32, "mxfp4"),
    "mlx-8bit": quantized(8, 64),
    **{f"{bits}bit": native(quantized(bits)) for bits in (2, 3, 4, 5, 6, 8)},
    "4bit-64-bias": native(quantized(4, 64, bias=True)),
}
EXPERTS: dict[str, Make] = {
    "dense": experts(False),
    "dense-bias": experts(True),
    "mlx-4bit": experts(False, 4),
    "4bit": native(experts(False, 4)),
    "8bit-bias": native(experts(True, 8)),
}


def check_joined(make: Make, *inputs: mx.array) -> None:
    model = Attention([make(rows) for rows in SIZES])
    one_by_one = model(*inputs)
    assert num_products(*one_by_one) == 3
    mx.eval(one_by_one)
    fuse_projections(model)
    # Twice, as when one process makes two engines of a model.
    fuse_projections(model)
    outputs = model(*inputs)
    assert num_products(*outputs) == 1
    for out, expected in zip(outputs, one_by_one, strict=True):
        assert out.shape == expected.shape
        assert relative_rms(np.array(out), np.array(expected)) <= 1e-6


@pytest.mark.parametrize("num_rows", [1, 3, 16, 70])
@pytest.mark.parametrize("layer", LINEAR)
def test_linear_layers(layer: str, num_rows: int) -> None:
    check_joined(LINEAR[layer], normal(num_rows, 1, DEPTH))


@pytest.mark.parametrize("num_rows", [1, 9])
@pytest.mark.parametrize("layer", EXPERTS)
def test_experts(layer: str, num_rows: int) -> None:
    x = normal(num_rows, 1, 1, 1, DEPTH)
    indices = mx.random.randint(0, 6, (num_rows, 1, 2), key=mx.random.key(1)).astype(mx.uint32)
    check_joined(EXPERTS[layer], x, indices)


@pytest.mark.parametrize("layer", ["dense", "dense-bias", "4bit", "8bit"])
def test_a_rows_bits_are_those_of_a_product_of_its_own(layer: str) -> None:
    """On the CPU, whose kernels promise it."""
    model = Attention([LINEAR[layer](rows) for rows in SIZES])
    x = normal(9, 1, DEPTH)
    one_by_one = model(x)
    mx.eval(one_by_one)
    fuse_projections(model)
    for out, expected in zip(model(x), one_by_one, strict=True):
        assert mx.array_equal(out, expected)


class Own(nn.Linear):  # type: ignore[misc]
    """Code of a model's own."""


def half(layer: nn.Module) -> nn.Module:
    layer.set_dtype(mx.float16)
    return layer


@pytest.mark.parametrize(
    "other",
    [
        quantized(8),
        quantized(4, 64),
        quantized(4, 32, bias=True),
        quantized(4, 32, "mxfp4"),
        LINEAR["dense"],
        lambda rows: half(quantized()(rows)),
        native(quantized()),
    ],
    ids=["bits", "group", "bias", "mode", "dense", "dtype", "kernel"],
)
def test_layers_of_different_formats_are_left_alone(other: Make) -> None:
    model = Attention([quantized()(96), other(32), quantized()(40)])
    before = [type(model[name]) for name in NAMES]
    fuse_projections(model)
    assert [type(model[name]) for name in NAMES] == before
    assert num_products(*model(normal(2, 1, DEPTH))) == 3


@pytest.mark.parametrize(
    "make",
    [
        lambda rows: Own(DEPTH, rows),
        lambda rows: LoRALinear.from_base(nn.Linear(DEPTH, rows)),
        lambda rows: experts(False)(rows).to_quantized(16, 4, "nvfp4", global_scale=True),
    ],
    ids=["subclass", "adapter", "whole matrix scale"],
)
def test_layers_with_more_than_rows_are_left_alone(make: Make) -> None:
    model = Attention([make(rows) for rows in SIZES])
    before = [type(model[name]) for name in NAMES]
    fuse_projections(model)
    assert [type(model[name]) for name in NAMES] == before


def test_inputs_of_different_depths_are_left_alone() -> None:
    model = Attention([nn.Linear(64, 96), nn.Linear(32, 96), nn.Linear(64, 96)])
    fuse_projections(model)
    assert type(model.q_proj) is nn.Linear


@pytest.mark.parametrize("layer", ["dense-bias", "4bit-64-bias"])
def test_parameters_stay_what_and_where_they_were(layer: str) -> None:
    model = nn.Sequential(Attention([LINEAR[layer](rows) for rows in SIZES]))
    before = {name: np.array(array) for name, array in tree_flatten(model.parameters())}
    fuse_projections(model)
    after = dict(tree_flatten(model.parameters()))
    assert list(after) == list(before)
    for name, array in after.items():
        assert np.array_equal(np.array(array), before[name])


def test_memory_is_that_of_the_layers() -> None:
    num_layers, depth = 16, 512
    model = nn.Sequential(
        *(
            Attention([nn.Linear(depth, rows, False) for rows in (512, 256, 256)])
            for _ in range(num_layers)
        )
    )
    mx.eval(model.parameters())
    weights = sum(array.nbytes for _, array in tree_flatten(model.parameters()))
    gc.collect()
    before = mx.get_active_memory()
    mx.reset_peak_memory()
    fuse_projections(model)
    assert mx.get_active_memory() - before <= weights // 100
    assert mx.get_peak_memory() - before <= 1.1 * weights / num_layers


def test_any_order_and_any_number_of_calls() -> None:
    model = Attention([nn.Linear(DEPTH, rows) for rows in SIZES])
    inputs = [normal(2, 1, DEPTH, seed=seed) for seed in range(3)]
    one_by_one = [[np.array(out) for out in model(x)] for x in inputs]
    fuse_projections(model)
    calls = [(0, 2), (1, 2), (1, 0), (0, 0), (0, 1), (0, 1), (2, 1), (2, 2), (1, 1), (2, 0)]
    for index, layer in calls:
        out = model[NAMES[layer]](inputs[index])
        np.testing.assert_allclose(np.array(out), one_by_one[index][layer], rtol=1e-5, atol=1e-6)


def test_nothing_of_a_step_is_kept() -> None:
    model = Attention([nn.Linear(DEPTH, rows) for rows in SIZES])
    fuse_projections(model)
    gc.collect()
    before = mx.get_active_memory()
    x = normal(4096, 1, DEPTH)
    outputs: Any = model(x)
    mx.eval(outputs)
    assert mx.get_active_memory() - before >= x.nbytes
    del x, outputs
    assert mx.get_active_memory() - before < 4096


def test_layers_that_do_not_share_an_input_are_taken_apart() -> None:
    class Crossed(Attention):
        def __call__(self, *inputs: mx.array) -> list[mx.array]:
            return [self.q_proj(*inputs), self.k_proj(inputs[0] + 1), self.v_proj(*inputs)]

    model = Crossed([nn.Linear(DEPTH, rows) for rows in SIZES])
    x = normal(2, 1, DEPTH)
    expected = [np.array(out) for out in model(x)]
    fuse_projections(model)
    for out, want in zip(model(x), expected, strict=True):
        np.testing.assert_allclose(np.array(out), want, rtol=1e-5, atol=1e-6)
    separate_unshared(model)
    assert {type(model[name]) for name in NAMES} == {nn.Linear}
    outputs = model(x)
    assert num_products(*outputs) == 3
    for out, want in zip(outputs, expected, strict=True):
        np.testing.assert_allclose(np.array(out), want, rtol=1e-5, atol=1e-6)


def test_those_that_share_stay_together() -> None:
    model = Attention([nn.Linear(DEPTH, rows) for rows in SIZES])
    fuse_projections(model)
    model(normal(2, 1, DEPTH))
    separate_unshared(model)
    assert num_products(*model(normal(2, 1, DEPTH))) == 1


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_models_have_fewer_products(family: str) -> None:
    """But for those that come with their matrices joined, or have no two of one input."""
    network, _ = tiny_models.build(family)
    tokens = mx.array([[1]])
    before = num_products(network(tokens))
    fuse_projections(network)
    after = num_products(network(tokens))
    assert (after < before) == (family not in NOTHING_TO_FUSE)


@pytest.mark.parametrize("comes_first", [False, True])
def test_a_model_whose_projections_differ_in_input_is_served(comes_first: bool) -> None:
    """Keys of another input are computed in between, without a product for queries and values."""
    network, config = tiny_models.build("llama")
    expected = dense_logits(network)
    attention = type(network.layers[1].self_attn)

    class Peeking(attention):  # type: ignore[misc, valid-type]
        def __call__(self, x: mx.array, mask: Any = None, cache: Any = None) -> mx.array:
            if comes_first:
                self.k_proj(x + 1)
            out: mx.array = super().__call__(x, mask, cache)
            if not comes_first:
                self.k_proj(x + 1)
            return out

    network.layers[1].self_attn.__class__ = Peeking
    model = PagedModel(network, config)
    pool = KVCachePool(model.layers, num_blocks=4, block_size=8, dtype=model.dtype)
    assert relative_rms(forward(model, pool, [Chunk(TOKENS, TABLE, 0, 20)])[0], expected) <= 1e-5
    joined = {id(part) for _, parts in joined_layers(network) for part in parts}
    are_joined = [id(layer.self_attn.q_proj) in joined for layer in network.layers]
    assert are_joined == [True, False]
