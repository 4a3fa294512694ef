"""Bytes of request bodies that a gateway reads or parses at once, and which tenant has them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from deployments.http.errors import UNAVAILABLE_RETRY_AFTER_S, ApiError


class BodyBudget:
    """Belongs to one event loop."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._held = Counter[str]()
        """Bytes by tenant, without zeros."""

    @property
    def num_bytes(self) -> int:
        return self._held.total()

    @contextmanager
    def request(self, tenant: str) -> Iterator[Callable[[int], None]]:
        """Reserve bytes while a body is read and parsed. Yields a function of its size so far, in
        bytes, which raises ``ApiError`` 503 over the budget."""
        held = 0

        def hold(num_bytes: int) -> None:
            nonlocal held
            if (more := num_bytes - held) > 0:
                self._check_room(tenant, more)
                self._held[tenant] += more
                held = num_bytes

        try:
            yield hold
        finally:
            self._held[tenant] -= held
            if not self._held[tenant]:
                del self._held[tenant]

    def _check_room(self, tenant: str, more: int) -> None:
        room = self._max_bytes - self.num_bytes
        # A key may use at most as much as it leaves free.
        if more <= (room - self._held[tenant] if tenant else room):
            return
        raise ApiError(
            503,
            f"Request bodies of {self._max_bytes} bytes at most are read at once "
            f"(gateway.max_total_body_bytes), and {self.num_bytes} are now.",
            type="service_unavailable",
            code="too_many_bodies",
            headers={"Retry-After": str(UNAVAILABLE_RETRY_AFTER_S)},
        )
