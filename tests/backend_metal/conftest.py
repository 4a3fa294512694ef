from tests.support.backend_metal.lost_tasks import no_lost_tasks  # noqa: F401
