"""What a replica's failures mean, and what a client is told when none of them can be repaired."""

from __future__ import annotations

import json
from dataclasses import dataclass

from deployments.client_response import Head
from deployments.errors import UNAVAILABLE_RETRY_AFTER_S, ApiError, shown
from deployments.retries import MAX_LOST

Refusal = tuple[Head, bytes]


class ReplicaFailedError(Exception):
    """A replica gave no answer of its own, or a refusal; another one may do better."""

    def __init__(
        self,
        reason: str,
        *,
        refusal: Refusal | None = None,
        lost: bool = False,
        is_sick: bool = True,
    ) -> None:
        super().__init__(reason)
        self.refusal = refusal
        """What the client is told if nobody does better."""
        self.lost = lost
        """Whether it fell while it worked on the request, and so perhaps because of it."""
        self.is_sick = is_sick
        """Whether the next request would fail there too."""


class CannotResumeError(Exception):
    """The replicas answer, but can't go on in the middle."""


@dataclass(frozen=True)
class _Meaning:
    status: int
    lost: bool = False
    is_sick: bool = True


# Errors that say nothing about the request: another replica may well take it.
_MEANINGS = {
    "queue_full": _Meaning(429, is_sick=False),
    "unavailable": _Meaning(503),
    "engine_stopped": _Meaning(503, lost=True),
    "step_failed": _Meaning(500, lost=True, is_sick=False),
}
_STATUS_OF_TYPE = {
    "invalid_request_error": 400,
    "rate_limit_error": 429,
    "service_unavailable": 503,
}


def failure_of(head: Head, body: bytes) -> ReplicaFailedError | None:
    """Why another replica should be asked, if this answer is a reason."""
    reason = f"refused with status {head.status}"
    match head.status:
        case 401 | 403:
            # A wrong secret is between gateway and replica; the client's own key was good.
            return ReplicaFailedError(reason)
        case 429:
            return ReplicaFailedError(reason, refusal=(head, body), is_sick=False)
        case 503:
            lost = _error(body).get("code") == "engine_stopped"
            return ReplicaFailedError(reason, refusal=(head, body), lost=lost)
        case 500 if _error(body).get("code") == "step_failed":
            return ReplicaFailedError(reason, refusal=(head, body), lost=True, is_sick=False)
    return None


def failure_told(body: bytes) -> tuple[Refusal, ReplicaFailedError | None]:
    """Of an error that came after the response had begun as a success: the answer that it would
    have been, and why another replica should be asked, if it is a reason."""
    error = _error(body)
    meaning = _MEANINGS.get(str(error.get("code")))
    status = meaning.status if meaning else _STATUS_OF_TYPE.get(str(error.get("type")), 500)
    headers = [(b"content-type", b"application/json")]
    if status in (429, 503):
        headers.append((b"retry-after", str(UNAVAILABLE_RETRY_AFTER_S).encode()))
    refusal = Head(status, tuple(headers)), body
    if meaning is None:
        return refusal, None
    return refusal, ReplicaFailedError(
        f"gave up with {error['code']}",
        refusal=refusal,
        lost=meaning.lost,
        is_sick=meaning.is_sick,
    )


def cannot_resume(body: bytes) -> bool:
    return _error(body).get("code") == "resume_failed"


def _error(body: bytes) -> dict[str, object]:
    """The members of an error in OpenAI's shape; none if it is nothing of the kind."""
    try:
        error = json.loads(body)["error"]
    except (ValueError, TypeError, KeyError):
        return {}
    return error if isinstance(error, dict) else {}


def no_replica(model: str, retry_after_s: int = UNAVAILABLE_RETRY_AFTER_S) -> ApiError:
    """Nobody can take a request for ``model``."""
    return ApiError(
        503,
        f"No replica of {shown(model)} can take the request now.",
        type="service_unavailable",
        code="unavailable",
        headers={"Retry-After": str(retry_after_s)},
    )


def no_room(model: str, retry_after_s: int) -> ApiError:
    """All who serve ``model`` have said of late that their queues are full."""
    return ApiError(
        429,
        f"Every replica of {shown(model)} has as many requests as it takes.",
        type="rate_limit_error",
        code="queue_full",
        headers={"Retry-After": str(retry_after_s)},
    )


def stream_broken() -> ApiError:
    return ApiError(
        502,
        "The replica stopped answering in the middle of the stream, and no other could go on.",
        type="server_error",
        code="stream_broken",
    )


def replicas_lost() -> ApiError:
    return ApiError(
        502,
        f"Replicas failed {MAX_LOST} times at this request, so it is not tried again.",
        type="server_error",
        code="replica_lost",
        # The openai package's client would send it again by itself.
        headers={"X-Should-Retry": "false"},
    )


def timed_out(seconds: float) -> ApiError:
    return ApiError(
        504,
        f"The request took longer than {seconds:g} seconds.",
        type="server_error",
        code="timeout",
    )
