"""Replacements for parts of an mlx-lm model in a packed step: caches, latent attention, recurrent
kernels, and fused projections, norms and rotary embeddings."""
