"""Readiness: whether any replica answers, without a wait for those that don't."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Sequence
from typing import Any

from deployments.fleet.directory import Replica
from deployments.gateway.relay.connections import (
    ConnectionLostError,
    ReplicaConnections,
    UnreachableError,
)

logger = logging.getLogger(__name__)

HEAD_START_S = 0.25
"""Replicas are asked one after another, this far apart: mostly the first one answers."""

Ready = dict[str, Any]


async def first_ready(
    replicas: Sequence[Replica], connections: ReplicaConnections, timeout_s: float
) -> Ready | None:
    """What the first replica that is ready answers to ``/ready``; each has ``timeout_s`` for it."""
    asked: set[asyncio.Task[Ready | None]] = set()
    try:
        for replica in replicas:
            asked.add(asyncio.create_task(_ask(replica, connections, timeout_s)))
            if answer := await _first_of(asked, HEAD_START_S):
                return answer
        return await _first_of(asked, None)
    finally:
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)


async def _first_of(
    asked: set[asyncio.Task[Ready | None]], patience_s: float | None
) -> Ready | None:
    """The first answer that comes in time. Removes from ``asked`` who has said no."""
    loop = asyncio.get_running_loop()
    give_up_at = None if patience_s is None else loop.time() + patience_s
    while asked:
        left = None if give_up_at is None else max(give_up_at - loop.time(), 0.0)
        done, _ = await asyncio.wait(asked, timeout=left, return_when=asyncio.FIRST_COMPLETED)
        if not done:
            return None
        asked -= done
        for task in done:
            if answer := task.result():
                return answer
    return None


async def _ask(replica: Replica, connections: ReplicaConnections, timeout_s: float) -> Ready | None:
    asking = connections.request(
        "GET", replica.url, "/ready", connect_timeout_s=timeout_s, stall_timeout_s=timeout_s
    )
    try:
        async with asyncio.timeout(timeout_s), asking as response:
            if response.status == 200:
                answer: Ready = json.loads(await response.read())
                return answer
    except (UnreachableError, ConnectionLostError, TimeoutError, ValueError) as error:
        logger.warning("Replica %s does not answer: %s", replica.replica_id, error)
    return None
