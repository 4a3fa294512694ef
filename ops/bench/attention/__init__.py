"""What one attention operator costs, against the machine and MLX's own attention."""
