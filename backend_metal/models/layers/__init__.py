"""What stands for an mlx-lm model's layers in a packed step: their caches, attention to latents,
recurrent operators, and projections, norms and rotations in fewer kernels."""
