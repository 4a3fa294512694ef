"""Handing a listening socket from one gateway of a host to the next.

A gateway that is to leave gives its successor the very socket that it listens with: no connection
is refused, and none that waits to be accepted is lost with the one who would have accepted it. Two
that are to stay must not have one port: the second fails, and Serve starts it on another host.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import fcntl
import os
import socket
import time
from pathlib import Path
from typing import IO

import xxhash

POLL_INTERVAL_S = 0.05
HANDOVER_TIMEOUT_S = 10.0
"""For a predecessor which is there to send its socket."""
LISTENING = b"\1"


class PortClaim:
    """Held by one process at most; the system gives up that of a process which dies."""

    def __init__(self, *, node: str, host: str, port: int) -> None:
        """``node`` is the host's own address: several may have their users' home in common, and
        listen at 0.0.0.0."""
        self._address = f"{host}:{port}"
        # A Unix socket's path may have 103 characters.
        name = xxhash.xxh64_hexdigest(f"{node} {self._address}".encode())
        folder = _own_folder()
        self._lock_path = folder / f"{name}.lock"
        self._socket_path = folder / f"{name}.sock"
        self._file: IO[bytes] | None = None
        self._predecessor: socket.socket | None = None

    async def take(self, *, patience_s: float) -> socket.socket | None:
        """The listening socket of a predecessor that leaves, if there is one. Raises ``OSError``
        naming the address, if another gateway still has it after that long."""
        give_up_at = time.monotonic() + patience_s
        while (file := self._lock()) is None:
            if time.monotonic() >= give_up_at:
                message = f"another gateway of this host serves {self._address}"
                raise OSError(errno.EADDRINUSE, message)
            await asyncio.sleep(POLL_INTERVAL_S)
        self._file = file
        return await asyncio.to_thread(self._receive)

    def listening(self) -> None:
        """Tells the predecessor that it may stop."""
        assert self._file is not None, "the claim has not been taken"
        if self._predecessor is not None:
            # It may have given up waiting, and stopped already.
            with self._predecessor, contextlib.suppress(ConnectionError):
                self._predecessor.sendall(LISTENING)
            self._predecessor = None

    def release(self) -> None:
        for held in (self._file, self._predecessor):
            if held is not None:
                held.close()
        self._file = self._predecessor = None

    async def hand_over(self, listener: socket.socket) -> None:
        """Give up the claim; returns once a successor listens with ``listener``."""
        assert self._file is not None, "the claim has not been taken"
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as offer:
            # What an earlier one left: only who has the claim offers anything.
            self._socket_path.unlink(missing_ok=True)
            offer.bind(str(self._socket_path))
            offer.listen()
            offer.setblocking(False)
            self.release()
            while True:
                successor, _ = await loop.sock_accept(offer)
                # One that has died meanwhile leaves the offer to the next.
                with successor, contextlib.suppress(ConnectionError):
                    socket.send_fds(successor, [LISTENING], [listener.fileno()])
                    if await loop.sock_recv(successor, 1) == LISTENING:
                        return

    def _receive(self) -> socket.socket | None:
        predecessor = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        predecessor.settimeout(HANDOVER_TIMEOUT_S)
        try:
            predecessor.connect(str(self._socket_path))
            _, descriptors, _, _ = socket.recv_fds(predecessor, 1, 1)
        except TimeoutError as error:
            message = f"the gateway that leaves {self._address} does not hand it over"
            raise OSError(errno.EADDRINUSE, message) from error
        except (FileNotFoundError, ConnectionError):
            descriptors = []
        if not descriptors:
            # Nobody leaves, or has given up waiting for a successor.
            predecessor.close()
            return None
        self._predecessor = predecessor
        return _tcp_listener(descriptors[0])

    def _lock(self) -> IO[bytes] | None:
        file = self._lock_path.open("ab")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return None
        return file


def _tcp_listener(descriptor: int) -> socket.socket:
    found = socket.socket(fileno=descriptor)
    # asyncio turns Nagle's delay off only for a socket that names its protocol, which not every
    # system tells.
    listener = socket.socket(found.family, found.type, socket.IPPROTO_TCP, fileno=found.detach())
    listener.set_inheritable(False)
    return listener


def _own_folder() -> Path:
    """Where nobody else may offer a gateway a socket, and nothing cleans up what looks unused, as
    among temporary files. Raises ``OSError`` naming the folder."""
    folder = Path.home() / ".pomona" / "run"
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = folder.lstat()
    if status.st_uid != os.getuid() or status.st_mode & 0o077:
        message = f"{folder} has to be a folder of mode 700 that belongs to user {os.getuid()}"
        raise PermissionError(errno.EACCES, message)
    return folder
