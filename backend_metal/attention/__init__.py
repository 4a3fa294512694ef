"""Attention over the paged KV cache: the public operators and everything that stands behind them.

``operators.py`` checks arguments and hands them to a path (``paths.py``): the kernels of a device,
or ``reference.py`` in plain MLX. ``self_check.py`` compares the two before an engine serves, and
``kv_cache.py`` owns the arrays that all of them write. Start reading at ``operators.py``.
"""

from backend_metal.attention.operators import (
    attention_launches,
    default_path,
    paged_attention,
    reshape_and_cache,
    scatter_paged_attention,
)

__all__ = [
    "attention_launches",
    "default_path",
    "paged_attention",
    "reshape_and_cache",
    "scatter_paged_attention",
]
