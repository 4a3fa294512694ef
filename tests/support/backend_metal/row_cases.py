"""Random rows, summed and normalised, or gated, by operators, and held to MLX's."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import mlx.core as mx
import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st

from backend_metal.devices.row_operators import RowOperators

DTYPES = (mx.float32, mx.float16, mx.bfloat16)
LAYOUTS = ("contiguous", "joined", "shifted", "transposed", "repeated")
EPSILON = 1e-5
NORM_ULPS = {mx.float32: 4, mx.float16: 2, mx.bfloat16: 2}
"""That a norm is from the exact one, rounded before the weight and behind it."""

Operator = Callable[[mx.array, mx.array], mx.array]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    shape: tuple[int, ...]
    layouts: tuple[str, str]
    """``joined``: halves of one product's rows; ``shifted``: no row starts where vectors may;
    ``transposed``: elements that are not neighbours; ``repeated``: one row for all."""
    dtype: mx.Dtype
    seed: int

    def arrays(self, spread: float) -> tuple[mx.array, mx.array]:
        rng = np.random.default_rng(self.seed)
        first, second = (
            _array(rng, self.shape, layout, self.dtype, spread) for layout in self.layouts
        )
        if self.layouts == ("joined", "joined"):
            whole = mx.concatenate([first, second], axis=-1)
            mx.eval(whole)
            first, second = mx.split(whole, 2, axis=-1)
        return first, second


@st.composite
def cases(draw: st.DrawFn, most_rows: int = 6, most_dims: int = 3) -> Case:
    width = draw(
        st.one_of(
            st.integers(1, 200),
            st.integers(1, 160).map(lambda n: 8 * n),
            # Of models, of each way that a row is shared out, and wider than a block keeps.
            st.sampled_from([512, 2560, 2880, 4096, 4104, 5120, 8192, 8200, 12288]),
        )
    )
    outer = draw(st.lists(st.integers(1, most_rows), min_size=0, max_size=most_dims - 1))
    layouts = st.sampled_from(LAYOUTS)
    return Case(
        shape=(*outer, width),
        layouts=draw(st.one_of(st.just(("joined", "joined")), st.tuples(layouts, layouts))),
        dtype=draw(st.sampled_from(DTYPES)),
        seed=draw(st.integers(0, 2**16)),
    )


def check_norm(
    operators: RowOperators, case: Case, *, expected: Operator, most_ulps: int | None = None
) -> None:
    """The sum has MLX's bits. ``expected``: a norm, of rows and weights; None: ``NORM_ULPS``."""
    a, b = case.arrays(3.0)
    rng = np.random.default_rng(case.seed)
    weight = mx.array(rng.uniform(0.5, 2, case.shape[-1]), case.dtype)
    total = a + b
    mx.eval(total, weight)
    x = a + b
    normed = operators.rms_norm_of_sum(x, weight, EPSILON)
    assert (normed.dtype, normed.shape) == (x.dtype, x.shape) == (case.dtype, case.shape)
    np.testing.assert_array_equal(places(x), places(total))
    most = NORM_ULPS[case.dtype] if most_ulps is None else most_ulps
    assert ulps_between(normed, expected(total, weight)) <= most


def check_silu(operators: RowOperators, case: Case, *, expected: Operator, most_ulps: int) -> None:
    # Sigmoids of 0 and of 1 as well.
    gate, up = case.arrays(12.0)
    out = operators.silu_product(gate, up)
    assert (out.dtype, out.shape) == (case.dtype, case.shape)
    assert ulps_between(out, expected(gate, up)) <= most_ulps


def mlx_norm(x: mx.array, weight: mx.array) -> mx.array:
    return mx.fast.rms_norm(x, weight, EPSILON)


def exact_norm(x: mx.array, weight: mx.array) -> mx.array:
    """Rounded where MLX's is."""
    rows = np.array(x.astype(mx.float32)).astype(np.float64)
    rows /= np.sqrt(np.mean(rows**2, axis=-1, keepdims=True) + EPSILON)
    return mx.array(rows.astype(np.float32)).astype(x.dtype) * weight


def rounded_silu(gate: mx.array, up: mx.array) -> mx.array:
    """As MLX's compiled kernel computes it on CUDA: each operation's result is of the dtype."""

    def rounded(values: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        return np.array(mx.array(values).astype(gate.dtype).astype(mx.float32))

    x, y = (np.array(array.astype(mx.float32)) for array in (gate, up))
    with np.errstate(over="ignore"):
        power = rounded(np.exp(np.abs(x).astype(np.float64)).astype(np.float32))
    rest = rounded(1 / rounded(1 + power))
    sigmoid = np.where(x < 0, rest, rounded(1 - rest))
    return mx.array(rounded(x * sigmoid) * y).astype(gate.dtype)


def places(array: mx.array) -> Ints:
    """Of elements among all of their dtype: neighbours are 1 apart, and both zeros at one place."""
    bits = 8 * array.dtype.size
    words = array.view(mx.uint16 if bits == 16 else mx.uint32)
    unsigned = np.array(words).astype(np.int64)
    magnitude = unsigned & (2 ** (bits - 1) - 1)
    return np.where(unsigned >> (bits - 1) == 1, -magnitude, magnitude)


def ulps_between(first: mx.array, second: mx.array) -> int:
    assert (first.dtype, first.shape) == (second.dtype, second.shape)
    assert not mx.isnan(first).any()
    return int(np.abs(places(first) - places(second)).max())


def _array(
    rng: np.random.Generator, shape: tuple[int, ...], layout: str, dtype: mx.Dtype, spread: float
) -> mx.array:
    def values(*own: int) -> mx.array:
        return mx.array(spread * rng.standard_normal(own), dtype)

    *outer, width = shape
    match layout:
        case "joined":
            part = values(*outer, 2 * width)[..., width:]
        case "shifted":
            part = values(*outer, width + 3)[..., 1 : width + 1]
        case "transposed":
            part = values(*reversed(shape)).transpose()
        case "repeated":
            part = mx.broadcast_to(values(width), shape)
        case _:
            part = values(*shape)
    mx.eval(part)
    return part
