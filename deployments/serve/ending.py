"""Whether a whole application ends, or only one of its replicas."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.schema import ApplicationStatus, ServeStatus

logger = logging.getLogger(__name__)

ANSWER_TIMEOUT_S = 2.0


async def application_ends(
    name: str,
    ask: Callable[[], ServeStatus] = serve.status,
    *,
    timeout_s: float = ANSWER_TIMEOUT_S,
) -> bool:
    """Whether Serve deletes the application, as it does when it is shut down: then nobody takes
    over. False, if it does not say so in time."""
    try:
        async with asyncio.timeout(timeout_s):
            status = await asyncio.to_thread(ask)
    except (TimeoutError, RayError, RayServeException) as error:
        logger.warning("Serve does not say whether %s ends: %r", name, error)
        return False
    found = status.applications.get(name)
    return found is not None and found.status == ApplicationStatus.DELETING
