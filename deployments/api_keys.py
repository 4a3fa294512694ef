"""Who may ask: API keys, and the rule that holds when none is configured."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
from collections.abc import Iterable
from pathlib import Path

from deployments.settings import GatewaySettings, SettingsError


def load_api_keys(settings: GatewaySettings) -> tuple[str, ...]:
    """Keys of the settings and of the file. Raises ``SettingsError`` naming what is wrong."""
    keys = [key.get_secret_value() for key in settings.api_keys]
    if settings.api_keys_file is not None:
        keys += _read(settings.api_keys_file)
    for position, key in enumerate(keys, start=1):
        if not key or not key.isascii() or not key.isprintable() or " " in key:
            raise SettingsError(
                f"gateway.api_keys: key number {position} must be printable ASCII without spaces"
            )
    return tuple(keys)


def _read(path: Path) -> list[str]:
    try:
        lines = path.expanduser().read_text().splitlines()
    except OSError as error:
        raise SettingsError(f"gateway.api_keys_file: {error.strerror}: {path}") from error
    stripped = (line.strip() for line in lines)
    keys = [line for line in stripped if line and not line.startswith("#")]
    if not keys:
        # An empty file must not turn authentication off.
        raise SettingsError(f"gateway.api_keys_file: {path} holds no key")
    return keys


class KeyRing:
    """Compares a presented key with every configured one, in time that tells nothing of them."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._digests = [_digest(key) for key in keys]

    def __bool__(self) -> bool:
        return bool(self._digests)

    def accepts(self, key: str) -> bool:
        presented = _digest(key)
        matches = [hmac.compare_digest(presented, digest) for digest in self._digests]
        return any(matches)


def _digest(key: str) -> bytes:
    # Digests have one length, and comparing lengths would leak it.
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()


def is_loopback(host: str) -> bool:
    """Whether ``host`` is an address of this machine's loopback interface."""
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
