"""Checks at start: fused layers against mlx-lm's, and the caches that a trace of a model found."""
