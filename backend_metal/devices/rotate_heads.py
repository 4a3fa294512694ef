"""The operator between a projection and attention: norms and rotary embeddings of queries and
keys."""

from __future__ import annotations

from typing import Protocol

import mlx.core as mx


class RotateHeads(Protocol):
    """The kernel of a device."""

    def __call__(
        self,
        q: mx.array,
        k: mx.array,
        positions: mx.array,
        *,
        q_weight: mx.array | None,
        k_weight: mx.array | None,
        frequencies: mx.array | None,
        dims: int,
        traditional: bool,
        base: float,
        scale: float,
        epsilon: float,
    ) -> tuple[mx.array, mx.array]:
        """Both contiguous. ``q`` and ``k`` are ``[num_tokens, heads, head_dim]`` of one dtype and
        any strides, ``positions`` int32 ``[num_tokens]``. Weights ``[head_dim]``, of that dtype or
        both None, are those of a norm before the rotation; ``frequencies`` float32 ``[dims / 2]``
        are MLX's ``freqs``, and without them ``base`` counts."""
