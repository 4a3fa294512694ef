"""The attention operators in plain MLX: the oracle for kernels, and their fallback."""

from backend_metal.attention.reference import (
    paged_attention,
    reshape_and_cache,
    scatter_paged_attention,
)

__all__ = ["paged_attention", "reshape_and_cache", "scatter_paged_attention"]
