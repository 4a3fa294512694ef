"""What a replica's failures mean, and what a client is told when none of them can be repaired."""

from __future__ import annotations

import json

from deployments.gateway.relay.client_response import Head
from deployments.http.errors import UNAVAILABLE_RETRY_AFTER_S, ApiError, shown
from deployments.wire.failure import FailureKind

TOLD_HEADERS = ("retry-after", "x-should-retry")
"""What clients go by, of an error's headers."""
Refusal = tuple[Head, bytes]
"""What a replica answered that has no room, or none for a while."""


class ReplicaFailedError(Exception):
    """A replica gave no answer of its own, or a refusal; another one may do better."""

    def __init__(self, reason: str, kind: FailureKind, refusal: Refusal | None = None) -> None:
        super().__init__(reason)
        self.kind = kind
        self.refusal = refusal
        """What the client is told if nobody does better."""


class CannotResumeError(Exception):
    """The replicas answer, but can't go on in the middle."""


def check_failure(failure: str | None, head: Head, body: bytes) -> None:
    """Raise ``ReplicaFailedError`` or ``CannotResumeError`` for an answer whose replica calls it a
    ``failure``."""
    if failure is None:
        return
    kind = FailureKind(failure)
    if kind is FailureKind.CANNOT_RESUME:
        raise CannotResumeError(body.decode(errors="replace"))
    # A wrong secret is between gateway and replica; the client's own key was good.
    refusal = None if head.status == 401 else (head, body)
    raise ReplicaFailedError(f"refused with status {head.status}, {kind}", kind, refusal)


def told_error(head: Head, body: bytes) -> ApiError:
    """A replica's error, as far as it is one in OpenAI's shape."""
    headers = {name.decode(): value.decode("latin-1") for name, value in head.headers}
    told = {name: str(value) for name, value in _error(body).items() if value is not None}
    return ApiError(
        head.status,
        told.get("message", ""),
        type=told.get("type", "invalid_request_error"),
        param=told.get("param"),
        code=told.get("code"),
        headers={name: headers[name] for name in TOLD_HEADERS if name in headers},
    )


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


def replica_lost() -> ApiError:
    return ApiError(
        502,
        "Replicas fell while this request was alone on them, so it is not tried again.",
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


def kinder(one: Refusal | None, other: Refusal | None) -> Refusal | None:
    """Of two replicas' refusals the one with the shorter wait. A replica that leaves has no say
    beside one that is full."""
    return min((one, other), key=_unkindness)


def wait_s(refusal: Refusal) -> int:
    """Whole seconds after which the client may come back."""
    head, _ = refusal
    wait = dict(head.headers).get(b"retry-after", b"")
    return int(wait) if wait.isdigit() else UNAVAILABLE_RETRY_AFTER_S


def _unkindness(refusal: Refusal | None) -> tuple[bool, bool, int]:
    if refusal is None:
        return True, True, 0
    return False, refusal[0].status != 429, wait_s(refusal)
