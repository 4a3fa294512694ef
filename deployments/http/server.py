"""An HTTP server inside an actor: its own socket, its own uvicorn, on the actor's event loop."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import math
import socket
import time
from collections.abc import Iterator

import uvicorn
from starlette.types import ASGIApp

from deployments.backend.open_files import raise_limit
from deployments.http.bounded_protocol import (
    ClientTimeouts,
    ErrorBody,
    bounded_protocol,
    openais_body,
)

# Longer than a gateway keeps an idle connection, so that the client side always closes first.
KEEP_ALIVE_S = 75
POLL_S = 0.005
"""Between two looks at a server that starts or ends, seconds."""
TURNS_TO_CONNECT = 5


class _Server(uvicorn.Server):
    """Ends with its last connection: uvicorn's own waits for ticks of 0.1 s, three at least."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._stopping = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        # The process's signals belong to Ray.
        yield

    async def main_loop(self) -> None:
        # Tick 0 renews the date that responses have.
        while not await self.on_tick(0):
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await self._stopping.wait()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()
        # What the event loop has accepted is a connection of the server some turns later.
        for _ in range(TURNS_TO_CONNECT):
            await asyncio.sleep(0)
        for connection in list(self.server_state.connections):
            connection.shutdown()
        try:
            async with asyncio.timeout(self.config.timeout_graceful_shutdown):
                # uvicorn has no event for it.
                while self.server_state.connections or self.server_state.tasks:  # noqa: ASYNC110
                    await asyncio.sleep(POLL_S)
        except TimeoutError:
            for task in self.server_state.tasks:
                task.cancel("the HTTP server has stopped")
        await self.lifespan.shutdown()


class HttpServer:
    """Serves ``app`` on ``host`` and ``port`` (0: a free one) until ``stop``."""

    def __init__(
        self,
        app: ASGIApp,
        *,
        host: str,
        port: int,
        timeouts: ClientTimeouts | None = None,
        error_body: ErrorBody = openais_body,
    ) -> None:
        """``error_body``: of what is refused before ``app`` hears of it."""
        self._host = host
        self._port = port
        self._server = _Server(
            uvicorn.Config(
                app,
                http=bounded_protocol(timeouts or ClientTimeouts(), error_body),
                # Otherwise an upgrade would pass by these bounds.
                ws="none",
                log_config=None,
                access_log=False,
                timeout_keep_alive=KEEP_ALIVE_S,
                server_header=False,
                # Nobody in front speaks for somebody else here.
                proxy_headers=False,
                lifespan="auto",
                interface="asgi3",
            )
        )
        self._task: asyncio.Task[None] | None = None
        self._listener: socket.socket | None = None

    @property
    def listener(self) -> socket.socket:
        """For another server, to listen with as well."""
        assert self._listener is not None, "the server has not been started"
        return self._listener

    async def start(self, *, patience_s: float = 0.0, listener: socket.socket | None = None) -> str:
        """Listen, with a socket of its own or with another server's ``listener``; returns the base
        URL. Raises ``OSError`` naming the address, if it is still taken after ``patience_s``
        seconds."""
        raise_limit()
        if listener is None:
            listener = await self._bind_patiently(patience_s)
        self._listener = listener
        self._task = asyncio.create_task(self._server.serve(sockets=[listener]))
        while not self._server.started:
            if self._task.done():
                await self._task
                raise RuntimeError("the HTTP server ended before it started")
            await asyncio.sleep(POLL_S)
        port = listener.getsockname()[1]
        host = f"[{self._host}]" if ":" in self._host else self._host
        return f"http://{host}:{port}"

    def check_health(self) -> None:
        """Raises ``RuntimeError`` if the server has ended and ``stop`` was not called."""
        if self._task is not None and self._task.done() and not self._server.should_exit:
            error = None if self._task.cancelled() else self._task.exception()
            raise RuntimeError(f"the HTTP server on port {self._port} has ended") from error

    async def stop(self, *, timeout_s: float | None = None) -> None:
        """Stop listening, let running responses end, cut those that take longer than that, and
        return. Idempotent."""
        if self._task is None:
            return
        if timeout_s is not None:
            self._server.config.timeout_graceful_shutdown = math.ceil(timeout_s)
        self._server.stop()
        await self._task

    async def _bind_patiently(self, patience_s: float) -> socket.socket:
        give_up_at = time.monotonic() + patience_s
        while True:
            try:
                return self._bind()
            except OSError as error:
                if error.errno != errno.EADDRINUSE or time.monotonic() >= give_up_at:
                    raise
            await asyncio.sleep(0.1)

    def _bind(self) -> socket.socket:
        host, port = self._host, self._port
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        # asyncio turns Nagle's delay off only for a socket that names its protocol.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            listener.close()
            message = f"can't listen on {host}:{port}: {error.strerror}"
            raise OSError(error.errno, message) from error
        listener.set_inheritable(False)
        return listener
