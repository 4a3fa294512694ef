"""What the recurrent layers of a model cost: our kernels against mlx-lm's own modules."""
