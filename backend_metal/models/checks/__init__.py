"""Held to mlx-lm before a model serves: fused layers run beside its own, and a trace's caches."""
