"""Outcomes: what a generation request came to for its client, counted once whoever tried it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from deployments.http.response_events import at_end, at_start
from deployments.protocol import GENERATION_PATHS
from deployments.protocol.pooling import POOLING_PATHS

OUTCOME_KEY = "pomona.outcome"
COUNTED_PATHS = frozenset({*GENERATION_PATHS, *POOLING_PATHS})


@dataclass
class RequestOutcome:
    """What is known so far about how one request ends."""

    model: str = ""
    """Empty unless it is one that is served: clients choose names freely."""
    status: int = 0
    """That the answer deserves: not the one it began with, if a stream told of an error."""
    is_complete: bool = False
    is_client_gone: bool = False

    @property
    def name(self) -> str:
        """As ``metrics.OUTCOMES`` has it."""
        if self.is_client_gone:
            return "client_gone"
        if not self.is_complete or self.status >= 500:
            return "server_error"
        if self.status == 429:
            return "rate_limited"
        return "client_error" if self.status >= 400 else "success"


class OutcomesMiddleware:
    """Tells ``on_end`` of each generation request's model and outcome. Belongs above whatever may
    refuse one; below it the scope has an ``RequestOutcome`` to be corrected."""

    def __init__(self, app: ASGIApp, *, on_end: Callable[[str, str], None]) -> None:
        self.app = app
        self._on_end = on_end

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if (
            scope["type"] != "http"
            or scope["method"] != "POST"
            or scope["path"] not in COUNTED_PATHS
        ):
            await self.app(scope, receive, send)
            return
        outcome = scope[OUTCOME_KEY] = RequestOutcome()

        async def watched_receive() -> Message:
            message = await receive()
            if message["type"] == "http.disconnect" and not outcome.is_complete:
                outcome.is_client_gone = True
            return message

        async def started(start: Message) -> None:
            outcome.status = start["status"]

        def ended() -> None:
            outcome.is_complete = True

        at_start(scope, started)
        at_end(scope, ended)
        try:
            await self.app(scope, watched_receive, send)
        finally:
            self._on_end(outcome.model, outcome.name)


def outcome_of(scope: Scope) -> RequestOutcome:
    """Of the request in ``scope``; one that nobody hears of, if it isn't counted."""
    found: RequestOutcome = scope.get(OUTCOME_KEY) or RequestOutcome()
    return found
