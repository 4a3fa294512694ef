"""Whether what a model computes for a token has the same bits whatever is computed with it, as the
graph of a step tells."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Sequence

import mlx.core as mx
import mlx.nn as nn

from backend_metal.cuda.few_rows_products import compute_any_rows
from backend_metal.cuda.products import FewRowsProduct

_OF_ELEMENTS = """
Abs Add ArcTan2 AsType BitwiseAnd BitwiseInvert BitwiseOr BitwiseXor Ceil Cos DivMod Divide Equal
Erf ErfInv Exp Expm1 Floor Greater GreaterEqual LeftShift Less LessEqual Log Log10 Log1p Log2
LogAddExp LogicalAnd LogicalNot LogicalOr Maximum Minimum Multiply NaNEqual Negative NotEqual
Power Remainder RightShift Round Rsqrt Select Sigmoid Sign Sin Sqrt Square Subtract Tanh
"""
_OF_PLACES = """
Arange AsStrided Broadcast BroadcastAxes Concatenate Contiguous Copy Depends DynamicSlice
ExpandDims Flatten Full Gather GatherAxis NumberOfElements Pad Reshape Slice SliceUpdate Split
Squeeze StopGradient Transpose Unflatten View
"""
_OF_ROWS = "LayerNorm RMSNorm RoPE"
_OUR_OWN = "AddRmsNorm FewRowsProduct RotateHeads SiluProduct"
ALIKE = frozenset(" ".join((_OF_ELEMENTS, _OF_PLACES, _OF_ROWS, _OUR_OWN)).split())
"""Primitives that have the same bits for a row in any company."""
ELEMENTWISE_GRAPH = "Compiled"
"""What the name of several in one begins with: all of elements."""
REASONS = {
    "AddMM": "products of matrices that are not in float16 or bfloat16, or in no plain layer",
    "Convolution": "convolutions",
    "GatherMM": "experts",
    "GatherQMM": "experts",
    "Matmul": "products of matrices that are not in float16 or bfloat16, or in no plain layer",
    "QuantizedMatmul": "quantized matrices",
    "QuantizedProduct": "quantized matrices",
}
NODE = re.compile(r'label ?= ?"([^"]*)", shape ?= ?rectangle')


def multiply_alike(
    kernel: FewRowsProduct,
    layers: Sequence[nn.Module],
    trace: Callable[[], Sequence[mx.array]],
) -> None:
    """Have ``kernel``, which takes any number of rows, compute all products. As a
    ``MultiplyAlike`` does."""
    compute_any_rows(layers, kernel)
    check_rows_alike(trace())


def check_rows_alike(results: Sequence[mx.array]) -> None:
    """``results``: of a step, not computed. Raises ``ValueError`` telling what their graph has that
    may give a row other bits with other rows beside it."""
    others = {
        name
        for name in _primitives(results)
        if name not in ALIKE and not name.startswith(ELEMENTWISE_GRAPH)
    }
    if others:
        reasons = sorted({REASONS.get(name, f"MLX's {name}") for name in others})
        raise ValueError(
            "engine.deterministic must be false for this model on the device 'cuda', where "
            f"{', and '.join(reasons)} may give a token other bits with other tokens beside it"
        )


def _primitives(results: Sequence[mx.array]) -> set[str]:
    text = io.StringIO()
    mx.export_to_dot(text, *results)
    return set(NODE.findall(text.getvalue()))
