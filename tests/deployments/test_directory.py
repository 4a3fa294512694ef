"""What a gateway knows of replicas."""

from __future__ import annotations

import asyncio

from deployments.fleet.directory import Replica, ReplicaDirectory

REPLICA = Replica("one", "node", "http://one", "model", 4096, "a secret of a replica")


async def test_a_wait_for_replicas_ends_with_the_first() -> None:
    directory = ReplicaDirectory()
    waiting = asyncio.create_task(directory.wait_for_any(3600))
    await asyncio.sleep(0)
    assert not waiting.done()
    directory.replace([REPLICA])
    await waiting
    assert directory.replicas == (REPLICA,)


async def test_a_wait_for_replicas_that_do_not_come_ends() -> None:
    directory = ReplicaDirectory()
    await directory.wait_for_any(0.05)
    assert directory.replicas == ()
