"""transformers' own rotary functions, computed by numpy where torch is not installed."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from transformers import LlamaConfig, modeling_rope_utils


class Tensor(np.ndarray):
    """What these functions call of a tensor."""

    def to(self, *_: Any, **how: Any) -> Tensor:
        return self.astype(how["dtype"]) if how.get("dtype") else self

    def float(self) -> Tensor:
        return self.astype(np.float64)


def _tensor(values: Any, **_: Any) -> Tensor:
    return np.asarray(values, np.float64).view(Tensor)


TORCH = SimpleNamespace(
    float=np.float64,
    float32=np.float64,
    int64=np.int64,
    Tensor=Tensor,
    tensor=_tensor,
    arange=lambda *ends, **_: np.arange(*ends).view(Tensor),
    cat=lambda parts, dim: np.concatenate(parts).view(Tensor),
    zeros=lambda size, **_: _tensor(np.zeros(size)),
    where=lambda condition, yes, no: np.where(condition, yes, no).view(Tensor),
    clamp=lambda array, low, high: np.clip(array, low, high),
)
"""In place of torch, in float64."""


def rotation(
    monkeypatch: pytest.MonkeyPatch,
    parameters: dict[str, Any],
    *,
    head_dim: int,
    context: int,
    seq_len: int | None = None,
) -> tuple[np.ndarray, float]:
    """Radians a token, float64 ``[dims / 2]``, and what is rotated is multiplied by.

    Args:
        parameters: ``rope_parameters``, with ``rope_type`` and ``rope_theta``.
        context: ``max_position_embeddings``
        seq_len: of the sequence that is rotated; None: within the original context.
    """
    config = LlamaConfig(
        head_dim=head_dim, max_position_embeddings=context, rope_parameters=dict(parameters)
    )
    kind = parameters["rope_type"]
    if kind == "default":
        dims = int(head_dim * parameters.get("partial_rotary_factor", 1.0))
        return parameters["rope_theta"] ** -(np.arange(0, dims, 2) / dims), 1.0
    monkeypatch.setattr(modeling_rope_utils, "torch", TORCH, raising=False)
    function = modeling_rope_utils.ROPE_INIT_FUNCTIONS[kind]
    frequencies, scale = function(config, None, seq_len=seq_len)
    return np.asarray(frequencies), float(scale)
