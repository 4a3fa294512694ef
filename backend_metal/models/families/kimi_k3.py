"""Kimi K3 on a paged cache: mlx-lm compiles its recurrent layers for a single token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mlx.nn as nn
from mlx_lm.models.kimi_k3 import KimiK3DeltaAttention

from backend_metal.models.layers import mla


def adapt(model: nn.Module, config: Mapping[str, Any]) -> None:
    mla.adapt(model, config)
    for part in model.modules():
        if isinstance(part, KimiK3DeltaAttention):
            # What is compiled takes arrays alone, and our states are not.
            part._step = part._decode_core
