"""What a replica does with its requests when Serve ends it."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import State

from deployments.backend import EngineConfig
from deployments.serve.replica import EngineReplica, drain
from deployments.serve.shipped_settings import EngineReplicaSettings
from deployments.settings import parse_settings
from tests.support.deployments.fake_backend import FakeBackend

pytestmark = pytest.mark.serve


class Drained(FakeBackend):
    """Its last request ends when the test says so."""

    def __init__(self) -> None:
        super().__init__()
        self.draining = asyncio.Event()
        self.idle = asyncio.Event()

    async def drain(self) -> None:
        self.draining.set()
        await self.idle.wait()


@pytest.fixture
async def backend() -> Drained:
    made = Drained()
    await made.start(EngineConfig())
    return made


async def test_running_requests_may_end(backend: Drained) -> None:
    state = State({"draining": False})
    draining = asyncio.create_task(drain(backend, state, 60))
    await backend.draining.wait()
    assert state.draining
    assert not draining.done()
    backend.idle.set()
    await draining


async def test_a_drain_has_an_end(backend: Drained) -> None:
    await drain(backend, State({"draining": False}), 0)


async def test_an_engine_that_is_ill_is_not_drained(backend: Drained) -> None:
    backend.healthy = False
    state = State({"draining": False})
    await drain(backend, state, 60)
    assert not backend.draining.is_set()
    # What its requests are told is that they may be why.
    assert not state.draining


async def test_a_replica_that_did_not_start_ends_without_a_word() -> None:
    """As Serve does it: the destructor after a constructor that raised."""
    settings = EngineReplicaSettings.of(parse_settings({"engine": {"backend": "nobody's"}}))
    # Not one of its own, whose destructor the interpreter would call, too.
    replica: Any = SimpleNamespace()
    with pytest.raises(ValueError, match="nobody's"):
        await EngineReplica.__init__(replica, settings)  # type: ignore[misc]
    await EngineReplica.__del__(replica)
