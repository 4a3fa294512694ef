"""How many KV blocks and states fit, and what MLX and the system are told of memory."""
