"""API keys that follow their file: every gateway reads the one on its own host.

Whoever distributes the file (a shared folder, rsync, configuration management) so changes keys
and limits on every host, without a redeployment. On a host that has no such file the keys hold
that were there when the application was built.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from deployments.api_keys import ApiKey, KeyRing, Keys
from deployments.keys_file import checked_keys, configured_keys, read_keys_file
from deployments.settings import GatewaySettings, SettingsError

logger = logging.getLogger(__name__)

CHECK_INTERVAL_S = 1.0

Fingerprint = tuple[int, int, int, int]


@dataclass(frozen=True)
class KeySource:
    """Where the keys are, and what they were when the application was built; holds digests."""

    configured: tuple[ApiKey, ...]
    """Those in the settings."""
    from_file: tuple[ApiKey, ...] = ()
    path: Path | None = None

    @classmethod
    def of(cls, settings: GatewaySettings) -> Self:
        """Reads the file, if there is to be one. Raises ``SettingsError`` naming what is wrong."""
        configured = configured_keys(settings)
        path = settings.api_keys_file
        if path is None:
            return cls(configured)
        from_file = read_keys_file(path.expanduser())
        checked_keys((*configured, *from_file))
        return cls(configured, from_file, path)

    def __bool__(self) -> bool:
        return bool(self.configured or self.from_file)

    def keys(self) -> Keys:
        """As they are from now on, on this host."""
        return KeyRing(self.configured) if self.path is None else WatchedKeys(self, self.path)


class WatchedKeys:
    """The keys of ``source``, those of its file as that is now. A file that is broken or gone
    leaves the keys as they were, and is told once. ``clock`` is in seconds.
    """

    def __init__(
        self, source: KeySource, path: Path, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._configured = source.configured
        self._path = path.expanduser()
        self._clock = clock
        self._ring = KeyRing((*source.configured, *source.from_file))
        self._seen: Fingerprint | str | None = None
        self._check_at = clock()
        self._follow()

    def __bool__(self) -> bool:
        return bool(self._ring)

    def find(self, presented: str) -> ApiKey | None:
        self._follow()
        return self._ring.find(presented)

    def _follow(self) -> None:
        if (now := self._clock()) < self._check_at:
            return
        self._check_at = now + CHECK_INTERVAL_S
        seen = _fingerprint(self._path)
        if seen == self._seen:
            return
        self._seen = seen
        if isinstance(seen, str):
            logger.error("%s: %s; the API keys stay as they were.", self._path, seen)
            return
        try:
            keys = read_keys_file(self._path)
            self._ring = KeyRing(checked_keys((*self._configured, *keys)))
        except SettingsError as error:
            logger.error("%s; the API keys stay as they were.", error)
            return
        logger.info("%s: keys of %s.", self._path, ", ".join(key.name for key in keys))


def _fingerprint(path: Path) -> Fingerprint | str:
    """What differs after a change, or why there is none."""
    try:
        status = os.stat(path)
    except OSError as error:
        return str(error.strerror)
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns
