"""What a gateway knows of replicas."""

from __future__ import annotations

import asyncio

from deployments.fleet.directory import REPLACED_WITHIN_S, Replica, ReplicaDirectory
from tests.support.clock import Clock

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


def test_a_model_is_remembered_for_as_long_as_its_replicas_may_come_back() -> None:
    clock = Clock()
    directory = ReplicaDirectory([REPLICA], clock)
    directory.replace([])
    clock.time += REPLACED_WITHIN_S - 1
    assert directory.serving("model") == ()
    assert directory.lately_serving("model") == (REPLICA,)
    assert directory.lately_serving("another") == ()
    clock.time += 1
    assert directory.lately_serving("model") == ()
    directory.replace([REPLICA])
    assert directory.lately_serving("model") == (REPLICA,)
