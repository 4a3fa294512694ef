"""Sums and norms in one launch, and activations in one: a norm finds its sum in the graph, models
compute what they did, and wrong operators never serve."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from io import StringIO
from typing import Any

import mlx.core as mx
import mlx.nn as nn
import numpy as np
import pytest

from backend_metal.attention.kv_cache import KVCachePool
from backend_metal.device import device_on
from backend_metal.devices.row_operators import RowOperators
from backend_metal.models import paged_model
from backend_metal.models.checks.rows_check import right_row_operators
from backend_metal.models.layers import activations
from backend_metal.models.layers.fused_rows import FusedRMSNorm, prepare_fused_rows, row_operators
from backend_metal.models.paged_model import PagedModel
from tests.cuda.on_cpu.extension import execution, operators
from tests.support.backend_metal import tiny_models
from tests.support.backend_metal.changed_device import changed
from tests.support.backend_metal.dense import (
    dense_logits,
    mixed_batches,
    mixed_batches_dense,
    tokens_of,
    worst_error,
)
from tests.support.backend_metal.packed_step import Chunk, forward

EPSILON = 1e-5


@pytest.fixture
def rows() -> Iterator[RowOperators]:
    """The CUDA kernels on the emulator."""
    with mx.stream(mx.cpu), execution():
        operators().take_nodes()
        yield RowOperators(operators().rms_norm_of_sum, operators().silu_product)


def normal(*shape: int, seed: int = 0, dtype: mx.Dtype = mx.float32) -> mx.array:
    array = mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)
    mx.eval(array)
    return array


def launches() -> list[str]:
    """Since the last call."""
    return [node[0].split("_float")[0] for node in operators().take_nodes()]


def operations(*arrays: mx.array) -> list[str]:
    """Of the graph that is still to be computed, sorted."""
    text = StringIO()
    mx.export_to_dot(text, *arrays)
    boxes = (line for line in text.getvalue().splitlines() if "rectangle" in line)
    return sorted(line.split('label ="')[1].split('"')[0] for line in boxes)


def test_the_norms_argument_becomes_the_launchs_sum(rows: RowOperators) -> None:
    a, b, c = (normal(3, 64, seed=seed) for seed in range(3))
    weight = normal(64, seed=3)
    x = a + b
    alias, expected_sum = x, np.array(a + b)
    normed = rows.rms_norm_of_sum(x, weight, EPSILON)
    # As a layer goes on.
    y = x + c
    assert operations(normed, y, alias) == ["Add", "AddRmsNorm"]
    np.testing.assert_array_equal(np.array(y), expected_sum + np.array(c))
    np.testing.assert_array_equal(np.array(alias), expected_sum)
    assert alias is x
    expected = mx.fast.rms_norm(mx.array(expected_sum), weight, EPSILON)
    np.testing.assert_allclose(np.array(normed), np.array(expected), rtol=1e-6, atol=1e-6)
    assert launches() == ["add_rms_norm"]


def test_a_sum_in_place_is_a_sum(rows: RowOperators) -> None:
    x, other, weight = normal(2, 64), normal(2, 64, seed=1), normal(64, seed=2)
    expected = np.array(x + other + other)
    x += other
    normed = rows.rms_norm_of_sum(x, weight, EPSILON)
    x += other
    assert operations(normed, x) == ["Add", "AddRmsNorm"]
    np.testing.assert_array_equal(np.array(x), expected)


def test_whoever_took_the_sum_before_has_mlxs(rows: RowOperators) -> None:
    a, b, weight = normal(3, 64), normal(3, 64, seed=1), normal(64, seed=2)
    x = a + b
    before = mx.abs(x)
    normed = rows.rms_norm_of_sum(x, weight, EPSILON)
    after = -x
    assert operations(before, normed, after) == ["Abs", "Add", "AddRmsNorm", "Negative"]
    mx.eval(before, normed, after)
    np.testing.assert_array_equal(np.array(before), np.abs(np.array(a + b)))
    np.testing.assert_array_equal(np.array(after), -np.array(a + b))
    assert launches() == ["add_rms_norm"]


def test_a_second_norm_of_a_sum(rows: RowOperators) -> None:
    a, b = normal(3, 64), normal(3, 64, seed=1)
    weights = [normal(64, seed=seed) for seed in (2, 3)]
    x = a + b
    normed = [rows.rms_norm_of_sum(x, weight, EPSILON) for weight in weights]
    for out, weight in zip(normed, weights, strict=True):
        expected = mx.fast.rms_norm(a + b, weight, EPSILON)
        np.testing.assert_allclose(np.array(out), np.array(expected), rtol=1e-5, atol=1e-6)
    assert launches() == ["add_rms_norm"]


def computed(x: mx.array) -> mx.array:
    mx.eval(x)
    return x


def under_way(x: mx.array) -> mx.array:
    mx.async_eval(x)
    return x


def on_another_stream(x: mx.array) -> mx.array:
    return mx.add(x, x, stream=mx.new_stream(mx.cpu))


PLAIN: dict[str, Callable[[mx.array], mx.array]] = {
    "no sum": lambda x: x * 2,
    "computed": lambda x: computed(x + x),
    "under way": lambda x: under_way(x + x),
    "of another stream": on_another_stream,
    "of another dtype": lambda x: (x + x).astype(mx.float16),
    "whose weight is of another dtype": lambda x: x.astype(mx.bfloat16) + 1,
    "of many dimensions": lambda x: x[None, None] + x[None, None],
    "of nothing": lambda x: x[:0] + x[:0],
}


@pytest.mark.parametrize("kind", PLAIN)
def test_what_stays_mlxs(kind: str, rows: RowOperators) -> None:
    weight = normal(64, seed=2)
    x, same = (PLAIN[kind](normal(3, 64)) for _ in range(2))
    normed = rows.rms_norm_of_sum(x, weight, EPSILON)
    expected = mx.fast.rms_norm(same, weight, EPSILON)
    assert (normed.dtype, normed.shape) == (expected.dtype, expected.shape)
    np.testing.assert_array_equal(*(np.array(a.astype(mx.float32)) for a in (normed, expected)))
    np.testing.assert_array_equal(*(np.array(a.astype(mx.float32)) for a in (x, same)))
    assert not launches()


def test_what_is_traced_stays_mlxs(rows: RowOperators) -> None:
    a, b, weight = normal(3, 64), normal(3, 64, seed=1), normal(64, seed=2)

    def of(norm: Callable[..., mx.array], a: mx.array, b: mx.array, weight: mx.array) -> mx.array:
        x = a + b
        return norm(x, weight, EPSILON) * x

    def fused(*arrays: mx.array) -> mx.array:
        return of(rows.rms_norm_of_sum, *arrays)

    def plain(*arrays: mx.array) -> mx.array:
        return of(mx.fast.rms_norm, *arrays)

    def gradient(function: Callable[..., mx.array]) -> Callable[..., Any]:
        return mx.grad(lambda *arrays: function(*arrays).sum(), argnums=(0, 2))

    for transform in (mx.compile, gradient, lambda f: mx.vmap(f, in_axes=(0, 0, None))):
        got, expected = (transform(function)(a, b, weight) for function in (fused, plain))
        for one, other in zip(*(list(arrays) for arrays in (got, expected)), strict=True):
            np.testing.assert_allclose(np.array(one), np.array(other), rtol=1e-5, atol=1e-5)
    # Of what a function does not trace, a weight it does.
    whole = a + b
    np.testing.assert_allclose(
        *(
            np.array(mx.grad(lambda w, norm=norm: norm(whole, w, EPSILON).sum())(weight))
            for norm in (rows.rms_norm_of_sum, mx.fast.rms_norm)
        ),
        rtol=1e-5,
        atol=1e-5,
    )
    assert not launches()


def test_errors_are_mlxs(rows: RowOperators) -> None:
    with pytest.raises(ValueError, match="rms_norm"):
        rows.rms_norm_of_sum(normal(2, 8) + 1, normal(4), EPSILON)


@pytest.mark.parametrize("kept", ["all", "sum", "norm", "nothing"])
@pytest.mark.parametrize("evaluates", [False, True])
def test_nothing_is_left_behind(kept: str, evaluates: bool, rows: RowOperators) -> None:
    weight = normal(256)

    def step() -> None:
        a, b = (mx.zeros((256, 256)) for _ in range(2))
        mx.eval(a, b)
        x = a + b
        normed = rows.rms_norm_of_sum(x, weight, EPSILON)
        wanted = {"all": [x, normed], "sum": [x * 2], "norm": [normed * 2], "nothing": []}[kept]
        del x, normed
        if evaluates:
            mx.eval(wanted)

    step()
    before = mx.get_active_memory()
    for _ in range(20):
        step()
    operators().take_nodes()
    mx.synchronize()
    # Of 256 KiB each array.
    assert mx.get_active_memory() <= before + 2**18


def num_prepared(network: nn.Module) -> int:
    return sum(isinstance(part, FusedRMSNorm) for part in network.modules())


@pytest.mark.parametrize("family", ["qwen3", "llama", "qwen3_moe", "glm4", "lfm2", "phi3"])
def test_mixed_batches_match_the_dense_model(family: str, rows: RowOperators) -> None:
    network, config = tiny_models.build(family)
    expected = mixed_batches_dense(network)
    operators().take_nodes()
    _, actual = mixed_batches(network, config, rows=rows)
    assert worst_error(actual, expected) <= 1e-5
    assert set(launches()) == {"add_rms_norm", "silu_product"}


def test_a_layer_has_three_of_its_launches(rows: RowOperators) -> None:
    network, config = tiny_models.build("qwen3")
    PagedModel(network, config, rows=rows)
    operators().take_nodes()
    tokens = mx.array([[1], [2], [3]])
    with row_operators(rows):
        mx.eval(network(tokens))
    # But for the first layer's first norm, of embeddings; and with the last one, behind all layers.
    num_layers = len(network.layers)
    assert sorted(launches()) == ["add_rms_norm"] * 2 * num_layers + ["silu_product"] * num_layers


@pytest.mark.parametrize(
    ("dtype", "tolerance"), [(mx.float32, 1e-5), (mx.float16, 4e-3), (mx.bfloat16, 3e-2)]
)
def test_logits_are_those_of_mlxs_operators(
    dtype: mx.Dtype, tolerance: float, rows: RowOperators, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of MLX's on a CPU, which rounds activations elsewhere."""
    network, config = tiny_models.build("qwen3")
    network.set_dtype(dtype)
    with monkeypatch.context() as patch:
        patch.setattr(paged_model, "device_on", lambda mlx: changed(device_on(mlx), rows=None))
        _, plain = mixed_batches(network, config)
    assert num_prepared(network) == 0
    operators().take_nodes()
    _, fused = mixed_batches(network, config, rows=rows)
    assert launches()
    assert worst_error(fused, plain) <= tolerance
    if dtype == mx.float32:
        for own, other in zip(plain, fused, strict=True):
            assert own.argmax(axis=-1).tolist() == other.argmax(axis=-1).tolist()


def test_mlx_lms_own_caches_never_notice(rows: RowOperators) -> None:
    network, config = tiny_models.build("qwen3")
    tokens = tokens_of(20, 1)
    expected = dense_logits(network, tokens, [12, 20])
    PagedModel(network, config, rows=rows)
    assert num_prepared(network) > 0
    operators().take_nodes()
    np.testing.assert_allclose(dense_logits(network, tokens, [12, 20]), expected, atol=1e-5)
    assert not launches()


def test_preparing_twice_is_preparing_once(rows: RowOperators) -> None:
    network, _ = tiny_models.build("qwen3")
    prepare_fused_rows(network)
    before = [type(part) for part in network.modules()]
    prepare_fused_rows(network)
    assert [type(part) for part in network.modules()] == before
    assert num_prepared(network) == 4 * len(network.layers) + 1


def test_a_model_can_go_back(rows: RowOperators) -> None:
    network, config = tiny_models.build("qwen3")
    model = PagedModel(network, config, rows=rows)
    pool = KVCachePool(model.layers, num_blocks=4, block_size=8, dtype=model.dtype)
    table = np.arange(4, dtype=np.int32)

    def logits() -> np.ndarray:
        (out,) = forward(model, pool, [Chunk(tokens_of(9, 1), table, 0, 9)])
        return out

    fused = logits()
    assert launches()
    model.separate_operators()
    np.testing.assert_allclose(logits(), fused, atol=1e-4)
    assert not launches()


def raises(*_: Any) -> mx.array:
    raise RuntimeError("no such instruction")


def forgets_the_sum(rows: RowOperators, x: mx.array, weight: mx.array, epsilon: float) -> mx.array:
    normed = rows.rms_norm_of_sum(x, weight, epsilon)
    x *= 2
    return normed


WRONG: dict[str, Callable[[RowOperators], RowOperators]] = {
    "epsilon": lambda rows: RowOperators(
        lambda x, weight, epsilon: rows.rms_norm_of_sum(x, weight, epsilon + 0.1),
        rows.silu_product,
    ),
    "weight": lambda rows: RowOperators(
        lambda x, weight, epsilon: rows.rms_norm_of_sum(x, weight[::-1], epsilon),
        rows.silu_product,
    ),
    "sum": lambda rows: RowOperators(
        lambda *arguments: forgets_the_sum(rows, *arguments), rows.silu_product
    ),
    "gate and up": lambda rows: RowOperators(
        rows.rms_norm_of_sum, lambda gate, up: rows.silu_product(up, gate)
    ),
    "norm raises": lambda rows: RowOperators(raises, rows.silu_product),
    "activation raises": lambda rows: RowOperators(rows.rms_norm_of_sum, raises),
}


@pytest.mark.parametrize("dtype", [mx.float32, mx.float16, mx.bfloat16])
def test_the_check_at_start(dtype: mx.Dtype, rows: RowOperators) -> None:
    network, _ = tiny_models.build("qwen3")
    prepare_fused_rows(network)
    assert right_row_operators(rows, network, dtype) is rows
    # Each width of norms once.
    assert [name.split("_bfloat")[0].split("_half")[0] for name in launches()] == [
        "add_rms_norm",
        *["silu_product"] * 2,
    ]


@pytest.mark.parametrize("wrong", WRONG)
def test_wrong_operators_never_serve(
    wrong: str, rows: RowOperators, caplog: pytest.LogCaptureFixture
) -> None:
    network, _ = tiny_models.build("qwen3")
    prepare_fused_rows(network)
    assert right_row_operators(WRONG[wrong](rows), network, mx.float32) is None
    assert "The kernels of norms and activations are wrong on this machine" in caplog.text


def test_a_model_with_wrong_operators_is_right(
    rows: RowOperators, caplog: pytest.LogCaptureFixture
) -> None:
    network, config = tiny_models.build("qwen3")
    expected = mixed_batches_dense(network)
    model, actual = mixed_batches(network, config, rows=WRONG["gate and up"](rows))
    assert model._rows is None
    assert worst_error(actual, expected) <= 1e-5


@pytest.mark.parametrize("wrong", ["epsilon", "sum", "gate and up"])
def test_parity_would_notice(
    wrong: str, rows: RowOperators, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(paged_model, "right_row_operators", lambda operators, *_: operators)
    network, config = tiny_models.build("qwen3")
    expected = mixed_batches_dense(network)
    _, actual = mixed_batches(network, config, rows=WRONG[wrong](rows))
    assert worst_error(actual, expected) > 1e-3


def test_activations_that_have_no_kernel_stay_as_they_are(rows: RowOperators) -> None:
    seam = activations._ActivationSeam(lambda gate, x: nn.silu(gate) * x)
    with row_operators(rows):
        for gate, x in (
            (normal(4), normal(3, 4)),
            (normal(4), normal(4, dtype=mx.float16)),
            (mx.array(1.0), mx.array(2.0)),
        ):
            np.testing.assert_allclose(
                np.array(seam(gate, x)), np.array(nn.silu(gate) * x), rtol=1e-6
            )
        assert not launches()
        mx.eval(seam(normal(4), normal(4)))
    assert launches() == ["silu_product"]
