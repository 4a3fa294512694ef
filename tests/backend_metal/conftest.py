# Before any test module imports mlx.core, so that MLX finds the BLAS.
import backend_metal  # noqa: F401
