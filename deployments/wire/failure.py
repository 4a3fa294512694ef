"""How a replica tells its gateway what an error means.

``FAILURE_HEADER`` says it. A response that has begun as a success has no head for an error any
more: there the head stands in an SSE comment right before the error's event.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from deployments.backend import FailureKind
from deployments.http.errors import FAILURE_HEADER, ApiError
from deployments.http.sse import EVENT_END, error_event

__all__ = ["FAILURE_HEADER", "BelatedError", "FailureKind"]

_START = b":head "
_EVENT = b"\ndata: "


@dataclass(frozen=True)
class BelatedError:
    """An error in a response that has begun as a success, with the head it would have had."""

    status: int
    headers: dict[str, str]
    body: bytes

    @staticmethod
    def render(error: ApiError) -> bytes:
        head = json.dumps([error.status, error.headers], separators=(",", ":")).encode()
        return _START + head + b"\n" + error_event(error)

    @classmethod
    def parse(cls, rest: bytes) -> BelatedError | None:
        """What a response ended with; None: not with an error, or not with a whole one."""
        head, _, body = rest.removeprefix(_START).partition(_EVENT)
        if not (rest.startswith(_START) and body.endswith(EVENT_END)):
            return None
        status, headers = json.loads(head)
        return cls(status, headers, body.removesuffix(EVENT_END))
