"""What a request's headers say of its stream: that it is resumable, and where it goes on."""

from __future__ import annotations

import time

from starlette.requests import Request

from deployments.gateway.access.api_keys import SCOPE_KEY as API_KEY
from deployments.gateway.access.api_keys import ApiKey
from deployments.gateway.parts import GatewayParts
from deployments.http.errors import ApiError, shown
from deployments.wire.envelope import Envelope
from deployments.wire.resumption import (
    LAST_EVENT_HEADER,
    RESUMABLE_HEADER,
    Resumption,
    request_digest,
)


def resumption_of(
    request: Request, body: bytes, stream: bool, envelope: Envelope, parts: GatewayParts
) -> Resumption | None:
    """Where the stream goes on: at its beginning, unless the client has come back. None: it isn't
    resumable. Raises ``ApiError`` 400."""
    wanted = request.headers.get(RESUMABLE_HEADER)
    last_event_id = request.headers.get(LAST_EVENT_HEADER)
    if wanted is None:
        if last_event_id is not None:
            raise _wrong(f"must be 1 in a request with {LAST_EVENT_HEADER}")
        return None
    if wanted.lower() not in ("1", "true"):
        raise _wrong(f"must be 1 or left out, not {shown(wanted)}")
    if not stream:
        raise _wrong("is only allowed when stream is true")
    key: ApiKey | None = request.scope.get(API_KEY)
    digest = request_digest(request.scope["path"], body, key.tenant if key else "")
    if last_event_id is None:
        return Resumption.of(envelope, digest)
    # An answer that ends in time can't have been cut later than that.
    lasts_s = parts.settings.request_timeout_s + parts.settings.longest_patience_s
    return Resumption.verify(
        last_event_id, parts.resumption_key, request=digest, not_before=time.time() - lasts_s
    )


def _wrong(problem: str) -> ApiError:
    return ApiError(400, f"{RESUMABLE_HEADER} {problem}.", param=RESUMABLE_HEADER)
