"""The registry of GPUs: which of them MLX finds here, and what this build has for it."""

from __future__ import annotations

from dataclasses import dataclass
from types import ModuleType

import mlx.core as mx

from backend_metal import native
from backend_metal.cuda import device as cuda
from backend_metal.devices.base import AttentionPath

STEP_TOKENS = 2048
"""The token budget of a step, unless a GPU has another. It computes some hundred rows in the time
in which it reads a model's weights, and each step costs the host and the attention over the prompt
so far anew: as mlx-lm, which prefills 2,048 tokens at a time."""
AVAILABLE = {"metal": mx.metal.is_available, "cuda": mx.cuda.is_available}
"""Whether MLX finds a GPU of this name, as in ``engine.device``."""


@dataclass(frozen=True)
class Gpu:
    name: str
    operators: ModuleType
    """The extension's, with the names that ``native`` has for a CPU's."""
    attention: AttentionPath
    step_tokens: int = STEP_TOKENS


def _find() -> Gpu | None:
    if native.metal is not None and mx.metal.is_available():
        return Gpu("metal", native.metal, _on_metal(native.metal))
    if cuda.OPERATORS is not None:
        path = cuda.attention_path(cuda.OPERATORS)
        return Gpu("cuda", cuda.OPERATORS, path, cuda.STEP_TOKENS)
    return None


def _on_metal(operators: ModuleType) -> AttentionPath:
    return AttentionPath(
        "metal",
        operators.scatter_paged_attention,
        operators.paged_attention,
        operators.reshape_and_cache,
        mx.zeros,
        decode_options={"decodes": True},
        prefill_options={"prefills": True},
        repeats_graphs=True,
        rotate_heads=operators.rotate_heads,
    )


GPU = _find()
"""That of this machine; None where there is none, or this build has no kernels for it."""
