"""Devices whose kernels are those of an extension."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx

from backend_metal.devices.base import Device, RecurrentKernels

GPU_HEAD_DIMS = (1, 4, 8, 16, 32, 64, 96, 128, 160, 192, 224, 256)
"""Columns of a state that the lanes of a simdgroup share."""


class ExtensionDevice(Device):
    """``operators``: with the names of ``native``."""

    def __init__(self, operators: Any, *, one_kernel: bool = False) -> None:
        """``one_kernel``: attends to each token as if it were alone."""
        self.operators = operators
        self._own = {"one_kernel": True} if one_kernel else {}
        self.rotate_heads = operators.rotate_heads
        self.recurrent = RecurrentKernels(operators.causal_conv, operators.linear_attention)
        self.draw_tokens = operators.draw_tokens

    def scatter_paged_attention(
        self, *arguments: Any, **options: Any
    ) -> tuple[mx.array, mx.array, mx.array]:
        out, keys, values = self.operators.scatter_paged_attention(
            *arguments, **options, **self._own
        )
        return out, keys, values

    def paged_attention(self, *arguments: Any, **options: Any) -> mx.array:
        out: mx.array = self.operators.paged_attention(*arguments, **options, **self._own)
        return out

    def reshape_and_cache(self, *arguments: mx.array) -> tuple[mx.array, mx.array]:
        keys, values = self.operators.reshape_and_cache(*arguments)
        return keys, values


class Gpu(ExtensionDevice):
    mlx = mx.Device(mx.gpu)
    draws_any_float = True

    def __init__(self, operators: Any, *, one_kernel: bool = False) -> None:
        super().__init__(operators, one_kernel=one_kernel)
        self.recurrent = RecurrentKernels(
            operators.causal_conv, operators.linear_attention, GPU_HEAD_DIMS
        )

    def phases(self, *, decodes: bool, prefills: bool) -> Mapping[str, bool]:
        return {"decodes": decodes, "prefills": prefills}
