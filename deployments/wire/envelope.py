"""What a gateway fixes about an answer, so that any replica can give it or finish it.

It travels in a header beside the client's own body. Only callers with the deployment's secret are
heard at all, and a gateway passes none of its clients' headers on.
"""

from __future__ import annotations

import json
import random
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

from deployments.http.errors import ApiError
from deployments.wire.seen import Seen

ENVELOPE_HEADER = "X-Pomona-Envelope"
CHECKPOINTS_HEADER = "X-Pomona-Checkpoints"
"""On the response of whoever was sent an envelope: it is a stream of events, and checkpoints follow
them. An answer that the client wants whole is the only event that is no comment."""


@dataclass(frozen=True)
class Envelope:
    answer_id: str
    """The part of the answer's id that is random."""
    created: int
    """In seconds, as Unix counts them."""
    seed: int
    """For a client that gave none."""
    tenant: str = ""
    """Whom the answer is for, which is no secret; empty: nobody in particular, without keys."""
    weight: float = 1.0
    """Of the tenant, where an engine is shared between several."""
    is_isolated: bool = False
    """Whether the tenant shares no cached prefixes with others."""
    priority: int = 0
    """Added to the request's own."""
    max_tokens: int | None = None
    """Most of each sequence, where the key's limit leaves it less than its context does; None: as
    asked."""
    max_prompt_tokens: tuple[int, ...] = ()
    """Most of each prompt, by its key's limit; empty: whatever they turn out to have."""
    attempt: str = ""
    """What the gateway calls this try at the answer when it asks what became of it; empty: it will
    not."""
    context_bytes: int = 0
    """Length of what the request refers to, which stands behind the client's body."""
    is_stored: bool = False
    """Whether the answer says that it is kept."""
    log_bytes: int = 0
    """Length of the log of checkpoints that stands behind that."""
    num_events: int = 0
    """With a name, that the client has of the tokens it has: an API may number them."""
    seen: Seen | None = None
    """What the client of a resumable stream has already; None: the stream is not resumable."""

    @classmethod
    def seal(
        cls,
        *,
        tenant: str = "",
        weight: float = 1.0,
        is_isolated: bool = False,
        priority: int = 0,
        now: Callable[[], float] = time.time,
        random_bits: Callable[[int], int] = random.getrandbits,
    ) -> Self:
        """For a new answer."""
        return cls(
            uuid.uuid4().hex,
            int(now()),
            random_bits(63),
            tenant=tenant,
            weight=weight,
            is_isolated=is_isolated,
            priority=priority,
        )

    @property
    def cache_tenant(self) -> str:
        """Whose cached prefixes the answer may use; empty: those of nobody in particular."""
        return self.tenant if self.is_isolated else ""

    def for_attempt(self, attempt: str, log: bytes, num_events: int = 0) -> Self:
        """``log``: of an answer that has begun, ``num_events``: those that stand for it."""
        return replace(self, attempt=attempt, log_bytes=len(log), num_events=num_events)

    def header(self) -> str:
        seen = self.seen.as_json() if self.seen else None
        return json.dumps(vars(self) | {"seen": seen}, separators=(",", ":"))

    @classmethod
    def parse(cls, header: str) -> Self:
        """Raises ``ApiError`` 400."""
        try:
            fields = json.loads(header)
            seen = fields.pop("seen", None)
            bounds = tuple(fields.pop("max_prompt_tokens", ()))
            seen = Seen.of_json(seen) if seen else None
            return cls(**fields, max_prompt_tokens=bounds, seen=seen)
        except (ValueError, TypeError) as error:
            raise ApiError(400, f"{ENVELOPE_HEADER} is malformed: {error}.") from error
