"""What the routes of one replica share."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from starlette.types import Scope

from deployments.backend import Backend, BackendError, ModelInfo
from deployments.http.errors import ApiError, model_not_found
from deployments.http.request_id import SCOPE_KEY
from deployments.observe.tracing import Tracer
from deployments.protocol.chat_formats.dialect import Dialect
from deployments.replica.attempts import Attempts
from deployments.replica.kept_streams import KeptStreams


@dataclass(frozen=True)
class ReplicaParts:
    backend: Backend
    """It has been started."""
    model: ModelInfo
    """What it serves."""
    dialect: Dialect
    max_body_bytes: int
    keep_alive_interval_s: float
    on_failure: Callable[[str], None]
    """Gets the error type of each request that failed outside of the engine."""
    is_leaving: Callable[[], bool]
    """Whether the replica is to stop."""
    tracer: Tracer
    kept: KeptStreams = field(default_factory=KeptStreams)
    attempts: Attempts = field(default_factory=Attempts)

    @contextmanager
    def refusals_counted(self) -> Iterator[None]:
        """Of a request that is not with the engine yet."""
        try:
            yield
        except ApiError as error:
            self.on_failure(error.type)
            raise
        except BackendError as error:
            self.on_failure(error.error_type)
            raise

    def check_model(self, name: str) -> None:
        """Raises ``ApiError`` 404."""
        if name not in (self.model.name, *self.model.other_names):
            raise model_not_found(name, [self.model.name])


def engine_request_id(scope: Scope) -> str:
    """The client's id need not be unique; what the backend gets is."""
    return f"{scope[SCOPE_KEY]}-{uuid.uuid4().hex[:12]}"
