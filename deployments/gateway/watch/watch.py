"""The watch: asks every replica for its reading, and has those who look wait for news."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager, suppress

from pydantic import ValidationError

from deployments.fleet.directory import Replica
from deployments.fleet.targets import GatewayAddress
from deployments.gateway.relay.connections import (
    ConnectionLostError,
    ReplicaConnections,
    UnreachableError,
)
from deployments.gateway.replicas.table import ReplicaTable
from deployments.gateway.watch.deployed import Deployments
from deployments.gateway.watch.rates import HISTORY_EVERY_S
from deployments.gateway.watch.view import FleetView, gateways_of, hosts_of
from deployments.gateway.watch.watched import Watched
from deployments.wire.reading import READING_PATH, EngineReading

logger = logging.getLogger(__name__)

LIVE_EVERY_S = 1.0
ANSWERS_WITHIN_S = 0.9
"""With that between two readings a loss is seen within two seconds, whether the host says so or is
silent."""


class WatchEndedError(Exception):
    """The gateway is to stop."""


class FleetWatch:
    """Belongs to one event loop; ``now`` is in seconds."""

    def __init__(
        self,
        replicas: ReplicaTable,
        connections: ReplicaConnections,
        gateways: Callable[[], Awaitable[Sequence[GatewayAddress]]],
        *,
        gateway: str,
        version: str,
        now: Callable[[], float] = time.monotonic,
    ) -> None:
        """``gateway``: the id of the one that watches."""
        self._replicas = replicas
        self._connections = connections
        self._gateways = gateways
        self._gateway = gateway
        self._version = version
        self._now = now
        self._watched: dict[str, Watched] = {}
        self._deployments = Deployments(replicas.feed)
        self._num_looking = 0
        self._is_ended = False
        self._wanted = asyncio.Event()
        """Somebody has begun to look."""
        self._news = asyncio.Condition()
        self._num_readings = 0
        self._read_at = 0.0
        self._view: FleetView | None = None
        """The latest."""
        self._told: dict[str | None, bytes] = {}
        """As JSON, by the tenant that sees it; None: all of it."""

    async def run_for_ever(self) -> None:
        """Until it is cancelled; then nobody waits for it any more."""
        try:
            while True:
                began = self._now()
                try:
                    await self.read()
                except Exception:
                    logger.exception("A reading of the fleet failed. The next one is made on time.")
                if self._num_looking:
                    await asyncio.sleep(max(0.0, LIVE_EVERY_S - (self._now() - began)))
                else:
                    await self._rest()
        finally:
            self._is_ended = True
            async with self._news:
                self._news.notify_all()

    async def read(self) -> None:
        """Ask all of them, once."""
        self._follow_directory()
        await asyncio.gather(*(self._ask(one) for one in self._watched.values() if one.is_asked))
        self._deployments.follow(self._watched.values())
        self._watched = {name: one for name, one in self._watched.items() if not one.is_forgotten}
        view = FleetView(
            time=time.time(),
            version=self._version,
            gateway=self._gateway,
            gateways=gateways_of(await self._gateways()),
            hosts=hosts_of(self._watched.values()),
            events=self._replicas.feed.events,
        )
        async with self._news:
            self._view, self._told = view, {}
            self._num_readings += 1
            self._read_at = self._now()
            self._news.notify_all()

    @contextmanager
    def looking(self) -> Iterator[None]:
        """For as long as the block runs there are readings every second."""
        self._num_looking += 1
        self._wanted.set()
        try:
            yield
        finally:
            self._num_looking -= 1

    async def latest(self, tenant: str | None = None) -> tuple[int, bytes]:
        """The number of a view that is no older than two readings are apart, and the view as
        ``tenant`` sees it; None sees all. Raises ``WatchEndedError``."""
        if self._num_readings and self._now() - self._read_at <= LIVE_EVERY_S:
            return self._num_readings, self._seen_by(tenant)
        with self.looking():
            return await self.after(self._num_readings, tenant)

    async def after(self, number: int, tenant: str | None = None) -> tuple[int, bytes]:
        """The same, once there is a later one. Raises ``WatchEndedError``."""
        async with self._news:
            await self._news.wait_for(lambda: self._is_ended or self._num_readings > number)
        if self._is_ended:
            raise WatchEndedError
        return self._num_readings, self._seen_by(tenant)

    def _seen_by(self, tenant: str | None) -> bytes:
        assert self._view is not None
        if tenant not in self._told:
            view = self._view if tenant is None else self._view.seen_by(tenant)
            self._told[tenant] = view.model_dump_json().encode()
        return self._told[tenant]

    async def _rest(self) -> None:
        self._wanted.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(HISTORY_EVERY_S):
                await self._wanted.wait()

    def _follow_directory(self) -> None:
        listed = {one.replica_id: one for one in self._replicas.directory.replicas}
        for name, one in self._watched.items():
            one.is_listed = name in listed
        for name, replica in listed.items():
            if name not in self._watched:
                # Those that were there before are no news.
                was_there = not self._num_readings
                self._watched[name] = Watched(
                    replica, self._replicas.feed, self._now, was_there=was_there
                )
                if not was_there:
                    self._replicas.feed.tell("joined", replica)

    async def _ask(self, one: Watched) -> None:
        try:
            async with asyncio.timeout(ANSWERS_WITHIN_S):
                status, body = await self._get(one.replica)
        except TimeoutError:
            one.was_silent()
        except (UnreachableError, ConnectionLostError):
            one.was_gone()
        else:
            # With another one's secret: the address was given to somebody else.
            if status == 401:
                one.was_gone()
            else:
                one.answered(_parsed(one.replica, body) if status == 200 else None)

    async def _get(self, replica: Replica) -> tuple[int, bytes]:
        async with self._connections.request(
            "GET",
            replica.url,
            READING_PATH,
            headers={"Authorization": f"Bearer {replica.secret}"},
            connect_timeout_s=ANSWERS_WITHIN_S,
            stall_timeout_s=ANSWERS_WITHIN_S,
        ) as response:
            return response.status, await response.read()


def _parsed(replica: Replica, body: bytes) -> EngineReading | None:
    try:
        return EngineReading.model_validate_json(body)
    except ValidationError as error:
        logger.warning("The reading of %s is of another form: %s", replica.replica_id, error)
        return None
