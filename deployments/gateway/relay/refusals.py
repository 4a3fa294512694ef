"""Of several replicas' refusals, what the client is told."""

from __future__ import annotations

from deployments.gateway.relay.failures import Refusal
from deployments.http.errors import UNAVAILABLE_RETRY_AFTER_S


def kinder(one: Refusal | None, other: Refusal | None) -> Refusal | None:
    """The one with the shorter wait. A replica that leaves has no say beside one that is full."""
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
