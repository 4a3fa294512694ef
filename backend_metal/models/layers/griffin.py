"""Griffin's RG-LRU (De et al., arXiv:2402.19427) on the operators of linear attention.

Each channel is a head of one value, whose state is one number: ``h <- a h + b x``, with the gate
``a``, the beta ``b``, and 1 for key and query. mlx-lm goes from token to token, and keeps
``[channels]`` where the operators keep ``[channels, 1, 1]``, as these classes do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.recurrent_gemma import RGLRU, Conv1d, RecurrentBlock

from backend_metal.devices.cpu.activations import exp
from backend_metal.models.layers.recurrent_kernels import CarriedState, packed_states, take_taps


class ScanningConv(Conv1d):  # type: ignore[misc]
    def __call__(self, x: mx.array, cache: mx.array | None = None) -> tuple[mx.array, Any]:
        states = packed_states()
        if states is None:
            result: tuple[mx.array, mx.array] = super().__call__(x, cache)
            return result
        return states.convolve(x, self._taps, self._bias), cache


class ScanningRGLRU(RGLRU):  # type: ignore[misc]
    def __call__(self, x: mx.array, cache: Any = None) -> tuple[mx.array, Any]:
        if isinstance(cache, CarriedState):
            return self._scan(x, cache), cache
        state = None if cache is None else cache.flatten(1)
        y, last = super().__call__(x, state)
        return y.astype(x.dtype), last[:, :, None, None]

    def _scan(self, x: mx.array, state: CarriedState) -> mx.array:
        """All tokens of a step, ``[1, num_tokens, channels]``, and so the result."""
        rates = -8.0 * nn.softplus(self.recurrent_param.astype(mx.float32))
        log_gates = rates * self._gate(x, self.recurrent_gate_weight, self.recurrent_gate_bias)
        begins = state.begins(x.shape[1])[None, :, None]
        betas = mx.where(begins, 1.0, mx.sqrt(1.0 - exp(2.0 * log_gates)))
        values = x * self._gate(x, self.input_gate_weight, self.input_gate_bias)
        ones = mx.ones((*x.shape[:2], 1, 1), x.dtype)
        y = state.update(ones, ones, values[..., None], exp(log_gates), betas, delta_rule=False)
        return y.squeeze(3)

    def _gate(self, x: mx.array, weight: mx.array, bias: mx.array) -> mx.array:
        heads = x.reshape(*x.shape[:2], self.num_heads, self.head_dim).swapaxes(1, 2)
        return mx.sigmoid(((heads @ weight).swapaxes(1, 2) + bias).flatten(2, 3))


class ScanningBlock(RecurrentBlock):  # type: ignore[misc]
    def reach_kernels(self) -> int:
        take_taps(self.conv_1d)
        return 2


SCANNING = {Conv1d: ScanningConv, RGLRU: ScanningRGLRU, RecurrentBlock: ScanningBlock}


def adapt(model: nn.Module, config: Mapping[str, Any]) -> None:
    for part in model.modules():
        # It may have been mixed into.
        if scanning := SCANNING.get(type(part)):
            part.__class__ = scanning
