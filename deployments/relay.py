"""One request on its way to a replica, and the replica's bytes on their way back.

Nothing is re-encoded: events are forwarded as they came, whole ones only, so that a stream which
breaks always breaks between two events. Until a stream's first content, another replica can take
over without the client noticing.
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

import aiohttp

from deployments import sse
from deployments.client_response import ClientResponse, Head
from deployments.directory import Replica, ReplicaDirectory
from deployments.errors import UNAVAILABLE_RETRY_AFTER_S, ApiError, shown
from deployments.routing import Router, Work, placed

logger = logging.getLogger(__name__)

EVENT_END = b"\n\n"
# Refusals that say nothing about the request: another replica may well take it.
REFUSED_STATUSES = frozenset({401, 403, 429, 503})
# The same refusals when they come as the first event after keep-alives.
REFUSED_CODES = {"queue_full": 429, "unavailable": 503}
# A request that takes down whoever works on it must not go through the whole cluster.
MAX_LOST = 2


@dataclass(frozen=True)
class Outgoing:
    """A validated request as the replicas get it."""

    path: str
    body: bytes
    stream: bool
    request_id: str
    work: Work


@dataclass(frozen=True)
class Limits:
    """``max_attempts`` replicas are tried; times are in seconds."""

    max_attempts: int
    connect_timeout_s: float
    stall_timeout_s: float
    request_timeout_s: float


class ReplicaFailedError(Exception):
    """A replica gave no answer of its own, or a refusal; another one may do better."""

    def __init__(
        self, reason: str, *, refusal: tuple[Head, bytes] | None = None, lost: bool = False
    ) -> None:
        super().__init__(reason)
        self.refusal = refusal
        self.lost = lost
        """Whether it was lost after the request had reached it."""


class Relay:
    """Sends ``outgoing`` to a replica that ``router`` picks, and its answer to the client.

    Cancelling ``run`` closes the connection to the replica, which frees the request there.
    """

    def __init__(
        self,
        outgoing: Outgoing,
        *,
        directory: ReplicaDirectory,
        router: Router,
        session: aiohttp.ClientSession,
        limits: Limits,
        on_first_content: Callable[[], None],
    ) -> None:
        self._outgoing = outgoing
        self._directory = directory
        self._router = router
        self._session = session
        self._limits = limits
        self._on_first_content = on_first_content
        self._deadline = time.monotonic() + limits.request_timeout_s
        self.replica_id = ""
        """The replica that answered, or was tried last."""

    async def run(self, client: ClientResponse) -> None:
        """Relay until the client has a whole response, the replica's or an error."""
        tried: set[str] = set()
        refusal: tuple[Head, bytes] | None = None
        num_lost = 0
        while len(tried) < self._limits.max_attempts:
            candidates = [
                replica
                for replica in self._directory.serving(self._outgoing.work.model)
                if replica.replica_id not in tried
            ]
            if not candidates:
                break
            replica = self._router.choose(self._outgoing.work, candidates)
            tried.add(replica.replica_id)
            self.replica_id = replica.replica_id
            try:
                with placed(self._router, self._outgoing.work, replica):
                    await self._attempt(replica, client)
                self._router.answered(replica)
                return
            except ReplicaFailedError as failure:
                request_id = self._outgoing.request_id
                logger.warning("%s failed %s: %s", replica.replica_id, request_id, failure)
                self._router.failed(replica)
                refusal = failure.refusal or refusal
                num_lost += failure.lost
            if client.has_content:
                await client.fail(_stream_broken())
                return
            if num_lost == MAX_LOST:
                await client.fail(_replicas_lost())
                return
        if refusal is not None:
            await client.whole(*refusal)
        else:
            await client.fail(no_replica(self._outgoing.work.model))

    async def _attempt(self, replica: Replica, client: ClientResponse) -> None:
        """Raises ``ReplicaFailedError`` before the client has a whole response."""
        timeout = aiohttp.ClientTimeout(
            total=max(self._deadline - time.monotonic(), 0.001),
            sock_connect=self._limits.connect_timeout_s,
            sock_read=self._limits.stall_timeout_s if self._outgoing.stream else None,
        )
        try:
            async with self._session.post(
                replica.url + self._outgoing.path,
                data=self._outgoing.body,
                headers={
                    "Authorization": f"Bearer {replica.secret}",
                    "Content-Type": "application/json",
                    "X-Request-Id": self._outgoing.request_id,
                },
                timeout=timeout,
                allow_redirects=False,
            ) as response:
                await self._forward(response, client)
        except TimeoutError as error:
            if time.monotonic() >= self._deadline:
                await client.fail(_timed_out(self._limits.request_timeout_s))
                return
            lost = not isinstance(error, aiohttp.ConnectionTimeoutError)
            reason = f"no answer in time ({type(error).__name__})"
            raise ReplicaFailedError(reason, lost=lost) from error
        except aiohttp.ClientError as error:
            lost = not isinstance(error, aiohttp.ClientConnectorError)
            raise ReplicaFailedError(f"{type(error).__name__}: {error}", lost=lost) from error

    async def _forward(self, response: aiohttp.ClientResponse, client: ClientResponse) -> None:
        head = Head.of(response)
        if response.content_type == "text/event-stream" and response.status == 200:
            await self._forward_events(head, response, client)
            return
        body = await response.read()
        if response.status in REFUSED_STATUSES:
            # A wrong secret is between gateway and replica; the client's own key was good.
            told = None if response.status in (401, 403) else (head, body)
            raise ReplicaFailedError(f"refused with status {response.status}", refusal=told)
        await client.whole(head, body)

    async def _forward_events(
        self, head: Head, response: aiohttp.ClientResponse, client: ClientResponse
    ) -> None:
        held = b""
        async for chunk in response.content.iter_any():
            data = held + chunk
            # The held part has no end of an event, but may have its first half.
            end = data.rfind(EVENT_END, max(len(held) - 1, 0))
            if end < 0:
                held = data
                continue
            end += len(EVENT_END)
            held = data[end:]
            waiting = not client.has_content
            if waiting and (refusal := _refusal_in(data[:end])):
                raise ReplicaFailedError(f"refused with {refusal[0].status}", refusal=refusal)
            await client.events(head, data[:end])
            if waiting and client.has_content:
                self._on_first_content()
        await client.end(head, held)


def _refusal_in(events: bytes) -> tuple[Head, bytes] | None:
    """The refusal, if the first of ``events`` that is no comment is one."""
    first = next((one for one in events.split(EVENT_END) if one.startswith(b"data:")), b"")
    if not first.startswith(sse.ERROR_START):
        return None
    body = first.removeprefix(b"data: ")
    status = REFUSED_CODES.get(json.loads(body)["error"]["code"])
    if status is None:
        return None
    retry_after = str(UNAVAILABLE_RETRY_AFTER_S).encode()
    headers = ((b"content-type", b"application/json"), (b"retry-after", retry_after))
    return Head(status, headers), body


def no_replica(model: str) -> ApiError:
    """Nobody can take a request for ``model``."""
    return ApiError(
        503,
        f"No replica of {shown(model)} can take the request now.",
        type="service_unavailable",
        code="unavailable",
        headers={"Retry-After": str(UNAVAILABLE_RETRY_AFTER_S)},
    )


def _stream_broken() -> ApiError:
    return ApiError(
        502,
        "The replica stopped answering in the middle of the stream.",
        type="server_error",
        code="stream_broken",
    )


def _replicas_lost() -> ApiError:
    return ApiError(
        502,
        f"{MAX_LOST} replicas were lost while they worked on this request.",
        type="server_error",
        code="replica_lost",
        # The openai package's client would send it again by itself.
        headers={"X-Should-Retry": "false"},
    )


def _timed_out(seconds: float) -> ApiError:
    return ApiError(
        504,
        f"The request took longer than {seconds:g} seconds.",
        type="server_error",
        code="timeout",
    )
