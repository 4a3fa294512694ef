"""The paged MLX engine: continuous batching over a block-structured KV cache.

A request enters ``engine/engine.py`` (served: ``backend.py``), waits in ``engine/scheduler.py``, is
packed with others into one batch, runs through an unmodified mlx-lm model whose attention is
``attention.scatter_paged_attention``, is sampled on the device, and leaves as text deltas. Start
reading at ``engine/scheduler.py``; ``LLM`` is the way in without a server.
"""

# First: what it loads must be there before mlx.core is.
from backend_metal.blas import blas_in_use
from backend_metal.llm import LLM, Completion
from deployments.backend import ChatPrompt, SamplingParams

__all__ = ["LLM", "ChatPrompt", "Completion", "SamplingParams", "blas_in_use"]
