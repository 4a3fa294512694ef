"""A CPU's residual sum and the norm of it in one primitive, against one after the other."""

from __future__ import annotations

from collections import Counter
from io import StringIO

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given

from backend_metal import native
from backend_metal.models.layers.fused_rows import FusedRMSNorm
from backend_metal.models.paged_model import PagedModel
from tests.support.backend_metal import row_cases, tiny_models
from tests.support.fuzzing import fuzz

EPSILON = 1e-5


def normal(*shape: int, seed: int = 0, dtype: mx.Dtype = mx.float32) -> mx.array:
    array = mx.random.normal(shape, key=mx.random.key(seed)).astype(dtype)
    mx.eval(array)
    return array


def operations(*arrays: mx.array) -> Counter[str]:
    text = StringIO()
    mx.export_to_dot(text, *arrays)
    boxes = (line for line in text.getvalue().splitlines() if "rectangle" in line)
    return Counter(line.split('label ="')[1].split('"')[0] for line in boxes)


@fuzz(80)
@given(case=row_cases.cases(most_rows=7, most_dims=4))
def test_any_shape_strides_and_dtype(case: row_cases.Case) -> None:
    a, b = case.arrays(3.0)
    weight = normal(case.shape[-1], seed=case.seed, dtype=case.dtype)
    x, same = a + b, np.array((a + b).astype(mx.float32))
    normed = native.rms_norm_of_sum(x, weight, EPSILON)
    computed = mx.array(same).astype(case.dtype)
    norm = native.rms_norm if case.dtype == mx.float32 else mx.fast.rms_norm
    expected = norm(computed, weight, EPSILON)
    assert (normed.shape, normed.dtype) == (expected.shape, expected.dtype)
    np.testing.assert_array_equal(
        np.array(normed.astype(mx.float32)), np.array(expected.astype(mx.float32))
    )
    np.testing.assert_array_equal(np.array(x.astype(mx.float32)), same)


def test_the_norms_argument_becomes_the_primitives_sum() -> None:
    a, b, c, weight = (normal(3, 64, seed=seed) for seed in range(4))
    x = a + b
    normed = native.rms_norm_of_sum(x, weight[0], EPSILON)
    y = x + c
    nodes = operations(normed, y)
    assert (nodes["AddRMSNorm"], nodes["Add"], nodes["RMSNorm"]) == (1, 1, 0)
    np.testing.assert_array_equal(np.array(y), np.array(a) + np.array(b) + np.array(c))


def test_memory_of_either_term_may_be_the_sums() -> None:
    weight = normal(64, seed=9)
    for doubled in ((True, False), (False, True), (True, True)):
        terms = [normal(5, 64, seed=seed) for seed in range(2)]
        expected = sum(np.array(t) * (2 if d else 1) for t, d in zip(terms, doubled, strict=True))
        a, b = (t * 2 if d else t for t, d in zip(terms, doubled, strict=True))
        x = a + b
        del a, b
        normed = native.rms_norm_of_sum(x, weight, EPSILON)
        mx.eval(normed, x)
        np.testing.assert_array_equal(np.array(x), expected)
        np.testing.assert_array_equal(
            np.array(normed), np.array(native.rms_norm(mx.array(expected), weight, EPSILON))
        )


@pytest.mark.parametrize("kind", ["no sum", "computed", "nothing"])
def test_what_stays_a_norm(kind: str) -> None:
    a, weight = normal(3, 64), normal(64, seed=2)
    summed = {"no sum": a * 2, "computed": a + a, "nothing": a[:0] + a[:0]}[kind]
    if kind == "computed":
        mx.eval(summed)
    normed = native.rms_norm_of_sum(summed, weight, EPSILON)
    assert operations(normed)["AddRMSNorm"] == 0
    expected = native.rms_norm(mx.array(np.array(summed)), weight, EPSILON)
    np.testing.assert_array_equal(np.array(normed), np.array(expected))


def test_wrong_shapes_are_refused() -> None:
    with pytest.raises(ValueError, match="weight"):
        native.rms_norm_of_sum(normal(2, 8) + 1, normal(4), EPSILON)


@pytest.mark.skipif(mx.default_device() != mx.Device(mx.cpu), reason="a GPU has its own")
def test_models_have_it_on_a_cpu() -> None:
    network, config = tiny_models.build("qwen3")
    PagedModel(network, config)
    # Two norms a layer, two more of heads, and the last one.
    prepared = sum(isinstance(part, FusedRMSNorm) for part in network.modules())
    assert prepared == 4 * len(network.layers) + 1
