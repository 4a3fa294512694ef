"""Mamba 1 (Gu and Dao, arXiv:2312.00752) on the operators of linear attention.

Each channel decays on its own in each place of its state: as a head of one value, whose rates are
for its key's channels. mlx-lm goes from token to token, and keeps ``[channels, state]`` where the
operators keep ``[channels, 1, state]``, as these classes do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.core as mx
import mlx.nn as nn
from mlx_lm.models.jamba import JambaMambaMixer
from mlx_lm.models.mamba import MambaBlock

from backend_metal.devices.cpu.activations import swiglu
from backend_metal.models.layers.recurrent_kernels import CarriedState

States = tuple[mx.array | None, Any]
"""The latest inputs of the convolution, and the sum."""


class _Scans:
    """Mixed into both classes."""

    A_log: mx.array
    _rates: mx.array

    def reach_kernels(self) -> int:
        self._rates = -mx.exp(self.A_log.astype(mx.float32))
        mx.eval(self._rates)
        return 1

    def _process_sequence(self, x: mx.array, inputs: mx.array, state: Any) -> Any:
        layer: Any = self
        if isinstance(state, CarriedState):
            return _scan(layer, x, state), (inputs, state)
        if state is not None:
            state = state.squeeze(2)
        parent: Any = super()
        out, (inputs, state) = parent._process_sequence(x, inputs, state)
        return out, (inputs, state[:, :, None])


class ScanningMambaBlock(_Scans, MambaBlock):  # type: ignore[misc]
    def normed(self, parts: list[mx.array]) -> list[mx.array]:
        if not self.use_bcdt_rms:
            return parts
        eps = self.args.mixer_rms_eps
        return [mx.fast.rms_norm(part, weight=None, eps=eps) for part in parts]


class ScanningJambaMixer(_Scans, JambaMambaMixer):  # type: ignore[misc]
    def normed(self, parts: list[mx.array]) -> list[mx.array]:
        norms = self.dt_layernorm, self.b_layernorm, self.c_layernorm
        return [norm(part) for norm, part in zip(norms, parts, strict=True)]


SCANNING = {JambaMambaMixer: ScanningJambaMixer, MambaBlock: ScanningMambaBlock}


def adapt(model: nn.Module, config: Mapping[str, Any]) -> None:
    for part in model.modules():
        # It may have been mixed into.
        if scanning := SCANNING.get(type(part)):
            part.__class__ = scanning


def _scan(layer: Any, x: mx.array, state: CarriedState) -> mx.array:
    """All tokens of a step, ``[1, num_tokens, hidden_size]``, and so the result."""
    x, z = layer.in_proj(x).split(2, axis=-1)
    x = nn.silu(layer.conv1d(x))
    rank = layer.time_step_rank
    steps, k, q = layer.normed(
        mx.split(layer.x_proj(x), [rank, rank + layer.ssm_state_size], axis=-1)
    )
    steps = nn.softplus(layer.dt_proj(steps)).astype(mx.float32)
    y = state.update(
        q[:, :, None],
        k[:, :, None],
        x[..., None],
        layer._rates,
        steps,
        delta_rule=False,
        gates_are_rates=True,
    ).squeeze(3)
    out: mx.array = layer.out_proj(swiglu(z, y + layer.D * x))
    return out
