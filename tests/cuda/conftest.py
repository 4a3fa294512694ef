# Before any test module imports mlx.core, so that MLX finds the BLAS.
import backend_metal  # noqa: F401
from tests.support.lost_tasks import no_lost_tasks as no_lost_tasks
