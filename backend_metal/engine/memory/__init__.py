"""Sizes of the KV cache and of recurrent state, and the memory limits of MLX and the system."""
