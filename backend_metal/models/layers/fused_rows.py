"""Norms and activations by a device's operators of whole rows, while a step's graph is built.

mlx-lm's layers add what a block computed to a residual, norm the sum, and add to that sum again
later. A norm sees in the graph that it is given a sum, so that models stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from threading import local

import mlx.core as mx
import mlx.nn as nn

from backend_metal.devices.cpu.float_rows import NativeRMSNorm
from backend_metal.devices.row_operators import RowOperators

_thread = local()


@contextmanager
def row_operators(operators: RowOperators | None) -> Iterator[None]:
    """Within it, in this thread, prepared layers use ``operators``; None: MLX's."""
    _thread.operators = operators
    try:
        yield
    finally:
        _thread.operators = None


def current_row_operators() -> RowOperators | None:
    return getattr(_thread, "operators", None)


class FusedRMSNorm(NativeRMSNorm):
    def __call__(self, x: mx.array) -> mx.array:
        operators = current_row_operators()
        if operators is None:
            return super().__call__(x)
        return operators.rms_norm_of_sum(x, self["weight"], self.eps)


def prepare_fused_rows(model: nn.Module) -> None:
    """Make each plain ``RMSNorm`` of ``model`` one that can be part of a sum's launch. Idempotent.

    Subclasses keep their own ways.
    """
    for part in model.modules():
        if type(part) in (nn.RMSNorm, NativeRMSNorm):
            part.__class__ = FusedRMSNorm
