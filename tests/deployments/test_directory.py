"""What a gateway knows of replicas."""

from __future__ import annotations

import asyncio
from dataclasses import replace

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


def test_a_model_is_known_by_its_other_names() -> None:
    ours = replace(REPLICA, model="ours", other_names=("hub/ours", "gpt-4o"))
    directory = ReplicaDirectory([REPLICA, ours])
    assert directory.name_of("gpt-4o") == directory.name_of("hub/ours") == "ours"
    assert directory.name_of("ours") == "ours"
    assert directory.name_of("another") == "another"
    directory.replace([REPLICA])
    assert directory.name_of("gpt-4o") == "ours"


def test_a_name_is_not_taken_from_the_model_that_has_it() -> None:
    greedy = replace(REPLICA, model="greedy", other_names=("model",))
    assert ReplicaDirectory([greedy, REPLICA]).name_of("model") == "model"
