"""The CPU kernels and the SGEMM on arm64, and here under sanitizers, which an extension has not."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import mlx.core as mx
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from backend_metal import native
from tests.metal_on_cpu.cross_build import machines
from tests.metal_on_cpu.cross_build.kernel_program import Program
from tests.support.backend_metal import attention_oracle as oracle
from tests.support.backend_metal.native_cases import (
    DTYPES,
    HEAD_DIMS,
    HEADS,
    SOFTCAPS,
    WINDOWS,
    attention,
    make_case,
)
from tests.support.backend_metal.packed_step import relative_rms

MACHINES: dict[str, Callable[[], Program]] = {
    "arm64": machines.on_arm64,
    "sanitized avx512": lambda: sanitized("avx512"),
    "sanitized avx2": lambda: sanitized("avx2"),
}
NAMES = {mx.float32: "float32", mx.float16: "float16", mx.bfloat16: "bfloat16"}


@pytest.fixture(scope="module", params=MACHINES.values(), ids=MACHINES.keys())
def program(request: pytest.FixtureRequest) -> Iterator[Program]:
    with request.param() as running:
        yield running


def sanitized(instruction_set: str) -> Program:
    chosen = native.instruction_set()
    try:
        native.set_instruction_set(instruction_set)
    except ValueError:
        pytest.skip(f"this machine has no {instruction_set}")
    native.set_instruction_set(chosen)
    return machines.with_sanitizers(instruction_set, instruction_set)


def bits(array: mx.array) -> np.ndarray:
    """numpy has no bfloat16."""
    return np.array(array if array.dtype != mx.bfloat16 else array.view(mx.uint16))


def values(array: np.ndarray) -> np.ndarray:
    if array.dtype == np.uint16:
        array = (array.astype(np.uint32) << 16).view(np.float32)
    return array.astype(np.float64)


def run(program: Program, case: oracle.Case, threads: int = 2) -> list[np.ndarray]:
    arrays = {name: bits(array) for name, array in case.mlx().items()}
    dtype = NAMES[case.dtype]
    return [*program.attention(arrays, dtype=dtype, threads=threads, **case.options)]


def check(program: Program, case: oracle.Case) -> None:
    out, *caches = run(program, case)
    expected = attention(case)
    assert np.isfinite(values(out)).all()
    if expected.any():
        assert relative_rms(values(out), expected) <= oracle.TOLERANCES[case.dtype]
    else:
        assert not values(out).any()
    for cache, want in zip(caches, oracle.scatter(case), strict=True):
        np.testing.assert_array_equal(values(cache), want)


@settings(max_examples=60)
@given(
    seed=st.integers(0, 2**16),
    dtype=st.sampled_from(DTYPES),
    heads=HEADS,
    head_dims=st.sampled_from(HEAD_DIMS),
    block_size=st.sampled_from([8, 16, 32]),
    window=WINDOWS,
    softcap=SOFTCAPS,
    has_sinks=st.booleans(),
    spans=st.lists(
        st.tuples(st.integers(0, 12), st.integers(0, 100)).filter(any), min_size=1, max_size=3
    ),
    skipped_slots=st.booleans(),
)
def test_attention(program: Program, **arguments: Any) -> None:
    check(program, make_case(**arguments))


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES.values())
def test_long_contexts(program: Program, dtype: mx.Dtype) -> None:
    spans = [(1, 1400), (40, 600), (1, 513)]
    check(program, make_case(0, (2, 4), True, dtype=dtype, spans=spans, head_dims=(128, 128)))


@pytest.mark.parametrize("dtype", DTYPES, ids=NAMES.values())
def test_a_row_does_not_depend_on_its_company(program: Program, dtype: mx.Dtype) -> None:
    case = make_case(1, (2, 4), False, dtype=dtype, spans=[(1, 700), (9, 100), (1, 30)])
    together = run(program, case)[0]
    for seq in range(3):
        start, end = case.cu_seqlens_q[seq : seq + 2]
        tokens = slice(start, end)
        alone = oracle.replace(
            case,
            q=case.q[tokens],
            k=case.k[tokens],
            v=case.v[tokens],
            slot_mapping=case.slot_mapping[tokens],
            block_tables=case.block_tables[seq : seq + 1],
            seq_lens=case.seq_lens[seq : seq + 1],
            cu_seqlens_q=np.array([0, end - start]),
        )
        for threads in (1, 3):
            np.testing.assert_array_equal(run(program, alone, threads)[0], together[tokens])


def random(shape: tuple[int, ...], seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


# Around register tiles, strips, passes of 384 rows and depths of 512.
PRODUCTS = [(1, 1, 1), (5, 3, 7), (33, 64, 64), (70, 65, 600), (385, 20, 520), (3, 300, 1100)]


@pytest.mark.parametrize("shape", PRODUCTS, ids=str)
def test_products_have_the_bits_of_this_machine(
    program: Program, shape: tuple[int, int, int]
) -> None:
    m, n, k = shape
    a, b = random((m, k), 0), random((k, n), 1)
    here = np.array(mx.array(a) @ mx.array(b))
    exact = a.astype(np.float64) @ b
    assert np.sqrt(np.mean((here - exact) ** 2) / np.mean(exact**2)) < 2e-6
    for transposed in ((False, False), (True, False), (False, True), (True, True)):
        for threads in (1, 2):
            out = program.product(a, b, transposed=transposed, threads=threads)
            np.testing.assert_array_equal(out, here)
    for rows in (1, m // 2 + 1):
        np.testing.assert_array_equal(program.product(a[:rows], b), here[:rows])


def test_products_are_scaled_and_added(program: Program) -> None:
    a, b, c = random((17, 90), 0), random((90, 21), 1), random((17, 21), 2)
    out = program.product(a, b, c, alpha=0.5, beta=-2.0)
    np.testing.assert_allclose(out, 0.5 * (a @ b) - 2.0 * c, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(("name", "limit"), [("exp", 2), ("tanh", 3)])
def test_functions(program: Program, name: str, limit: int) -> None:
    x = np.random.default_rng(0).uniform(-12, 12, 4096).astype(np.float32)
    actual, exact = program.activation(name, x), getattr(np, name)(x.astype(np.float64))
    ulps = np.abs(actual - exact) / np.spacing(np.abs(exact).astype(np.float32))
    assert ulps.max() <= limit


def test_swiglu(program: Program) -> None:
    gate, up = random((1003,), 0) * 4, random((1003,), 1)
    exact = gate / (1 + np.exp(-gate.astype(np.float64))) * up
    np.testing.assert_allclose(program.activation("swiglu", gate, up), exact, rtol=1e-5, atol=1e-7)


def test_a_sanitizer_would_speak() -> None:
    arrays = {
        "q": random((1, 1, 64), 0),
        **{name: random((1, 1, 64), 1) for name in ("k", "v")},
        **{name: random((2, 8, 1, 64), 2) for name in ("k_cache", "v_cache")},
        "slot_mapping": np.array([-1]),
        "block_tables": np.array([[9]]),  # of two blocks
        "seq_lens": np.array([3]),
        "cu_seqlens_q": np.array([0, 1]),
    }
    with (
        pytest.raises(RuntimeError, match=r"AddressSanitizer: heap-buffer-overflow"),
        machines.with_sanitizers("avx2", "avx2") as program,
    ):
        program.attention(arrays, dtype="float32", scale=0.125)
