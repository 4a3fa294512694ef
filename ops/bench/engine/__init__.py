"""Output tokens a second: the engine and mlx-lm on the same random model."""
