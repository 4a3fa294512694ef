"""Reloading API keys when their file changes: every gateway reads the one on its own host.

Whoever distributes the file (a shared folder, rsync, configuration management) so changes keys
and limits on every host, without a redeployment. On a host that has no such file the keys hold
that were there when the application was built.
"""

from __future__ import annotations

import logging
import os
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from time import sleep
from typing import Self

from deployments.gateway.access.api_keys import ApiKey, KeyRing, Keys
from deployments.gateway.access.keys_file import (
    UnreadableError,
    checked_keys,
    configured_keys,
    read_keys_file,
)
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
        if self.path is None:
            return KeyRing(self.configured)
        keys = WatchedKeys(self, self.path)
        # A shared folder may hang, and a long file takes a while: no request waits for either.
        arguments = (weakref.ref(keys),)
        threading.Thread(target=_watch, args=arguments, name="api-keys", daemon=True).start()
        return keys


class WatchedKeys:
    """The keys of ``source``, those of its file as that was at the last look. A file that is broken
    or gone leaves the keys as they were, and is told once.

    One thread looks, the event loop's reads.
    """

    def __init__(self, source: KeySource, path: Path) -> None:
        self._configured = source.configured
        self._path = path.expanduser()
        # Rebound as a whole: a reader has the old ring or the new one.
        self._ring = KeyRing((*source.configured, *source.from_file))
        self._seen: Fingerprint | None = None
        self._problem: str | None = None
        self.follow()

    def __bool__(self) -> bool:
        return bool(self._ring)

    def find(self, presented: str) -> ApiKey | None:
        return self._ring.find(presented)

    def follow(self) -> None:
        """Look at the file. Never raises: a watch that ended would leave revoked keys valid."""
        problem = None
        try:
            self._look()
        except SettingsError as error:
            problem = str(error)
        except Exception as error:  # noqa: BLE001
            # What it says could be a key.
            problem = f"{self._path}: {type(error).__name__}"
        if problem and problem != self._problem:
            logger.error("%s; the API keys stay as they were.", problem)
        self._problem = problem

    def _look(self) -> None:
        """Raises ``SettingsError``: at each look while the file can't be read, and once for what
        is wrong in it."""
        seen = _fingerprint(self._path)
        if seen == self._seen:
            return
        self._seen = seen
        try:
            keys = read_keys_file(self._path)
        except UnreadableError:
            self._seen = None
            raise
        self._ring = KeyRing(checked_keys((*self._configured, *keys)))
        logger.info("%s: keys of %s.", self._path, ", ".join(key.name for key in keys))


def _watch(watched: weakref.ref[WatchedKeys]) -> None:
    """Until nobody has the keys any more."""
    while True:
        sleep(CHECK_INTERVAL_S)
        keys = watched()
        if keys is None:
            return
        keys.follow()
        del keys


def _fingerprint(path: Path) -> Fingerprint:
    """What differs after a change. Raises ``UnreadableError``."""
    try:
        status = os.stat(path)
    except OSError as error:
        raise UnreadableError(f"{path}: {error.strerror}") from None
    return status.st_mtime_ns, status.st_size, status.st_ino, status.st_ctime_ns
