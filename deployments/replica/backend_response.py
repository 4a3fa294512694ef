"""An HTTP response that a backend works on while it is sent."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any, ClassVar

from starlette.types import Receive, Scope, Send

from deployments.backend import BackendError
from deployments.http.disconnect import run_until_disconnect
from deployments.http.errors import ApiError, api_error_from, internal_error
from deployments.http.request_id import SCOPE_KEY
from deployments.observe.logs import log_request
from deployments.observe.tracing import request_span
from deployments.replica.attempts import Tally
from deployments.replica.parts import ReplicaParts
from deployments.replica.sending import Sending

logger = logging.getLogger(__name__)


class BackendResponse(ABC):
    """An ASGI response; the client's leaving cancels it. It leaves a span and a line in the log."""

    name: ClassVar[str]
    """Of what is done, in the log."""
    span_name: ClassVar[str]

    def __init__(self, parts: ReplicaParts, attempt: str, tally: Tally) -> None:
        """``attempt``: the gateway's, of which ``tally`` is kept; empty: nobody's."""
        self._parts = parts
        self._attempt = attempt
        self._tally = tally
        self._arrived = time.perf_counter()
        self._sending = Sending()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        attempts, attempt = self._parts.attempts, self._attempt
        with attempts.running(attempt, self._tally) if attempt else nullcontext():
            await self._respond(scope, receive, send)

    async def _respond(self, scope: Scope, receive: Receive, send: Send) -> None:
        outcome = "failed"
        with request_span(self._parts.tracer, self.span_name, scope, scope[SCOPE_KEY]) as span:
            try:
                completed = await run_until_disconnect(
                    receive, self._send(send), is_sent=lambda: self._sending.is_sent
                )
                if not self._sending.has_failed:
                    outcome = "finished" if completed else "client gone"
            except BackendError as error:
                # The engine has counted it.
                raise self._refusal(error) from error
            except Exception:
                self._parts.on_failure(internal_error().type)
                raise
            finally:
                span.set_attributes({"pomona.outcome": outcome, **self._span_attributes()})
                log_request(
                    logger,
                    f"{self.name} {outcome}",
                    **self._log_fields(),
                    seconds=round(time.perf_counter() - self._arrived, 3),
                    request_id=scope[SCOPE_KEY],
                )

    def _refusal(self, error: BackendError) -> ApiError:
        """What a client is told of an error before the response has begun."""
        return api_error_from(error)

    @abstractmethod
    async def _send(self, send: Send) -> None:
        """The whole response, by ``_sending``."""

    @abstractmethod
    def _span_attributes(self) -> Mapping[str, Any]: ...

    @abstractmethod
    def _log_fields(self) -> Mapping[str, Any]: ...
