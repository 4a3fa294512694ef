"""The paged MLX engine: continuous batching over a block-structured KV cache.

A request enters ``engine/engine.py`` (served: ``backend.py``), waits in
``engine/schedule/scheduler.py``, is packed with others into one batch, runs through an unmodified
mlx-lm model whose attention is ``attention.scatter_paged_attention``, is sampled on the device, and
leaves as text deltas. Start reading at ``engine/schedule/scheduler.py``; ``LLM`` is the way in
without a server.
"""

# First: what it loads must be there before mlx.core is.
from backend_metal.devices.cpu.blas import blas_in_use
from backend_metal.open_files import limit_kept
from deployments.backend.open_files import raise_limit

with limit_kept():
    try:
        import mlx_lm.utils  # noqa: F401
    except ImportError as error:
        if "libmlx" not in str(error):
            raise
        raise ImportError(
            f"MLX is here without its library ({error}); on Linux that is a package of its own: "
            "pip install 'pomona-serve[cpu]', or 'pomona-serve[cuda13]' for NVIDIA GPUs"
        ) from error
raise_limit()

from backend_metal.llm import LLM, Completion  # noqa: E402
from deployments.backend import ChatPrompt, SamplingParams  # noqa: E402

__all__ = ["LLM", "ChatPrompt", "Completion", "SamplingParams", "blas_in_use"]
