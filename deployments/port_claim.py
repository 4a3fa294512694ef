"""Which gateway of a host takes new clients at a port, while an old one may still listen there.

A gateway and its successor share the port for a moment, so that no connection is refused, but two
that are to stay must not: the second one fails, and Serve starts it on another host.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import tempfile
import time
import uuid
from pathlib import Path
from typing import IO

POLL_INTERVAL_S = 0.05


class PortClaim:
    """Held by one process at most; the system gives up that of a process which dies."""

    def __init__(self, *, node: str, host: str, port: int) -> None:
        """``node`` is the host's own address: several may have a folder for temporary files in
        common, and listen at 0.0.0.0."""
        self._address = f"{host}:{port}"
        name = f"pomona-gateway-{node}-{host}-{port}-{os.getuid()}.lock".replace(":", "_")
        self._path = Path(tempfile.gettempdir()) / name
        self._file: IO[bytes] | None = None
        self._name = uuid.uuid4().hex.encode()

    async def take(self, *, patience_s: float) -> None:
        """Raises ``OSError`` naming the address, if another one still has it after that long."""
        give_up_at = time.monotonic() + patience_s
        while (file := self._lock()) is None:
            if time.monotonic() >= give_up_at:
                message = f"another gateway of this host serves {self._address}"
                raise OSError(errno.EADDRINUSE, message)
            await asyncio.sleep(POLL_INTERVAL_S)
        file.truncate(0)
        self._file = file

    def listening(self) -> None:
        """Tells the predecessor that it may stop."""
        assert self._file is not None, "the claim has not been taken"
        self._file.write(self._name)
        self._file.flush()

    def release(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    async def taken_over(self) -> None:
        """Returns once a successor has what was released here, and listens."""
        while True:
            if self._is_taken_over():
                return
            await asyncio.sleep(POLL_INTERVAL_S)

    def _is_taken_over(self) -> bool:
        if file := self._lock():
            file.close()
            return False
        return self._path.read_bytes() not in (b"", self._name)

    def _lock(self) -> IO[bytes] | None:
        file = self._path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file
