"""API keys, and the rule that holds when none is configured.

Only digests of keys are kept once they have been read, so that nothing that is logged, pickled or
shown can give a key away.
"""

from __future__ import annotations

import hashlib
import ipaddress
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Protocol

from deployments.gateway.access.rate_limits import NO_LIMITS, RateLimits

SCOPE_KEY = "pomona.api_key"
"""Where the ASGI scope has the ``ApiKey`` of an admitted request; absent without keys."""


@dataclass(frozen=True)
class ApiKey:
    """One holder of keys: a name for logs, what it may use, and SHA-256 digests of its keys, of
    which there are two while one is being replaced."""

    name: str
    digests: tuple[bytes, ...] = field(repr=False)
    limits: RateLimits = NO_LIMITS
    priority: int = 0
    """Added to that of its requests; lower runs first."""
    weight: float = 1.0
    """Its part of a busy engine, against the parts of other keys."""
    is_operator: bool = False
    """Whether the fleet's view shows it everybody's sequences."""
    is_named: bool = True
    """False: the name says where the key stands, and may be another one's tomorrow."""

    @property
    def tenant(self) -> str:
        """What stays the same for as long as the holder does."""
        return self.name if self.is_named else self.digests[0].hex()

    @classmethod
    def of(cls, name: str, *keys: str, limits: RateLimits = NO_LIMITS) -> ApiKey:
        """From keys as clients present them."""
        return cls(name, tuple(map(key_digest, keys)), limits)


class Keys(Protocol):
    """The keys that hold at the moment."""

    def __bool__(self) -> bool:
        """Whether there is any; then a request without one is refused."""
        ...

    def find(self, presented: str) -> ApiKey | None: ...


class KeyRing:
    """A table of keys by digest: a look-up takes as long for a wrong key as for a right one,
    whatever their number. What its time might tell is of digests, which nobody can choose.

    Raises ``ValueError`` for a name or a key that comes twice.
    """

    def __init__(self, keys: Iterable[ApiKey]) -> None:
        held = tuple(keys)
        names = Counter(key.name for key in held)
        if twice := [name for name, count in names.items() if count > 1]:
            raise ValueError(f"the name {twice[0]} comes twice")
        self._by_digest = {digest: key for key in held for digest in key.digests}
        if len(self._by_digest) < sum(len(key.digests) for key in held):
            raise ValueError("a key comes twice")

    def __bool__(self) -> bool:
        return bool(self._by_digest)

    def find(self, presented: str) -> ApiKey | None:
        return self._by_digest.get(key_digest(presented))


def key_digest(key: str) -> bytes:
    """SHA-256 of a key."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def is_loopback(host: str) -> bool:
    """Whether ``host`` is an address of this machine's loopback interface."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
