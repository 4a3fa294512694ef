"""Resumption ids: how a client that lost its gateway says how far it had read.

Each event of a resumable stream has one as its SSE ``id``. It holds all that a gateway fixed about
the answer and how much of it the client has, so that any gateway can have the rest made: nothing is
kept where the stream came from. It is signed, for one request of one client.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Self

from deployments.http.errors import ApiError
from deployments.wire.envelope import Envelope
from deployments.wire.seen import Seen

RESUMABLE_HEADER = "X-Pomona-Resumable"
"""Of a request whose stream is to have ids."""
LAST_EVENT_HEADER = "Last-Event-ID"
"""Of one that goes on behind an event, as browsers' ``EventSource`` sends it."""
NO_CHOICE = -1
"""What the event with the usage belongs to."""
_DIGEST_BYTES = 16


@dataclass(frozen=True)
class Resumption:
    answer_id: str
    created: int
    seed: int
    """These three: as the envelope of the first attempt had them."""
    request: str
    """``request_digest`` of what was asked, and by whom."""
    replica_id: str = ""
    """Where the event came from; that replica may still have the answer's tokens."""
    lineage: tuple[str, int] = ("", 0)
    """That replica's."""
    max_tokens: int | None = None
    """As the envelope of the first attempt had it: the answer ends where it would have ended."""
    seen: Seen = field(default_factory=Seen)
    num_events: int = 0
    """As the envelope has it."""
    events_seen: Mapping[int, int] = field(default_factory=dict)
    """By choice: events that the client has of the tokens behind those in ``seen``."""

    @classmethod
    def of(cls, envelope: Envelope, request: str) -> Self:
        """Of an answer that nobody has seen anything of."""
        return cls(envelope.answer_id, envelope.created, envelope.seed, request)

    def bounded(self, envelope: Envelope) -> Self:
        """With the bound of ``envelope``, unless the answer has one since it began."""
        return replace(self, max_tokens=self.max_tokens or envelope.max_tokens)

    def address(self, envelope: Envelope) -> Envelope:
        """``envelope`` for the rest of this answer."""
        return replace(
            envelope,
            answer_id=self.answer_id,
            created=self.created,
            seed=self.seed,
            max_tokens=self.max_tokens,
            num_events=self.num_events,
            seen=self.seen,
        )

    def sign(self, key: bytes) -> str:
        """Plain ASCII, without spaces."""
        fields = (
            self.answer_id,
            self.created,
            self.seed,
            self.request,
            self.replica_id,
            self.lineage,
            self.max_tokens,
            self.seen.as_json(),
            self.num_events,
            [*self.events_seen.items()],
        )
        payload = _encoded(json.dumps(fields, separators=(",", ":")).encode())
        return f"{payload}.{_signature(key, payload)}"

    @classmethod
    def verify(cls, given: str, key: bytes, *, request: str, not_before: float) -> Self:
        """Raises ``ApiError`` 400 unless a gateway of this deployment gave it for ``request``, of
        an answer that was begun at ``not_before`` or later."""
        payload, _, signature = given.partition(".")
        if not hmac.compare_digest(signature.encode(), _signature(key, payload).encode()):
            raise _refused("was not given by this deployment, or was changed since")
        try:
            fields = json.loads(_decoded(payload))
            answer_id, created, seed, asked, replica_id, lineage, bound, *had = fields
            seen, num_events, events_seen = had
        except (ValueError, binascii.Error) as error:
            raise _refused("is of another version of this server") from error
        if asked != request:
            raise _refused("belongs to another request: body, path and API key must be the same")
        if created < not_before:
            raise _refused("is too old")
        revision, max_model_len = lineage
        return cls(
            answer_id,
            created,
            seed,
            asked,
            replica_id,
            (revision, max_model_len),
            bound,
            Seen.of_json(seen),
            num_events,
            dict(events_seen),
        )


def request_digest(path: str, body: bytes, client: str) -> str:
    """What must be the same when a stream goes on; ``client``: who asks."""
    digest = hashlib.sha256()
    for part in (path.encode(), client.encode(), body):
        digest.update(len(part).to_bytes(8, "big") + part)
    return _encoded(digest.digest()[:_DIGEST_BYTES])


def _signature(key: bytes, payload: str) -> str:
    return _encoded(hmac.digest(key, payload.encode(), "sha256")[:_DIGEST_BYTES])


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))


def _refused(problem: str) -> ApiError:
    return ApiError(
        400,
        f"{LAST_EVENT_HEADER} {problem}. Send the request without it to begin anew.",
        param=LAST_EVENT_HEADER,
        code="resumption_refused",
    )
