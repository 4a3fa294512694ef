"""Heads of queries and keys on the CPU: as float64 has them, and with the bits of the operators in
whose place one is."""

from __future__ import annotations

from dataclasses import replace

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given

from backend_metal import native
from backend_metal.devices.cpu.float_rows import rope_frequencies
from backend_metal.models.layers.rotary import Rotary, rotated
from tests.support.backend_metal.rotate_heads_cases import EPSILON, MANY, Case, cases, check
from tests.support.fuzzing import fuzz


@fuzz(200)
@given(case=cases())
def test_heads_match_float64(case: Case) -> None:
    check(native.rotate_heads, case)


@pytest.mark.parametrize("dtype", [mx.float32, mx.bfloat16])
def test_many_tokens_match_float64(dtype: mx.Dtype) -> None:
    check(native.rotate_heads, replace(MANY, dtype=dtype))


@pytest.mark.parametrize("tokens", [1, 7, 300])
@pytest.mark.parametrize("dims", [64, 40])
def test_it_has_the_bits_of_norm_and_rope(tokens: int, dims: int) -> None:
    rows = mx.random.normal((tokens, 8 * 64), key=mx.random.key(0))
    weights = mx.random.uniform(0.5, 2, (2, 64), key=mx.random.key(1))
    positions = mx.random.randint(0, 40_000, (tokens,), key=mx.random.key(2)).astype(mx.int32)
    # Of one product, behind which the values are.
    heads = [part.reshape(tokens, -1, 64) for part in mx.split(rows, [4 * 64, 6 * 64], axis=-1)[:2]]
    rotary = Rotary(dims, False, 1e6)
    got = rotated(native.rotate_heads, rotary, *heads, positions, (weights[0], weights[1]), EPSILON)
    assert got is not None
    for out, x, weight in zip(got, heads, weights, strict=True):
        normed = native.rms_norm(x, weight, EPSILON)[:, :, None]
        expected = native.rope(normed, positions, rope_frequencies(dims // 2, 1e6), 1.0)
        np.testing.assert_array_equal(np.array(out), np.array(expected.squeeze(2)))


def test_nothing_of_no_tokens() -> None:
    none = mx.zeros((0, 2, 64))
    positions = mx.zeros((0,), mx.int32)
    out = rotated(native.rotate_heads, Rotary(64, False, 1e4), none, none, positions, None, EPSILON)
    assert out is not None
    assert np.array(out[0]).shape == (0, 2, 64)
