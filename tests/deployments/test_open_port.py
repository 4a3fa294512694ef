"""What a gateway says whose port is taken."""

from __future__ import annotations

import asyncio
import errno
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from starlette.applications import Starlette

from deployments.gateway import port as gateway_port
from deployments.gateway.port import GatewayPort
from deployments.serve.open_port import open_port

SERVES_PROXY = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\nsuccess"
STRANGERS = [
    b"HTTP/1.1 404 Not Found\r\nContent-Length: 2\r\n\r\nno",
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nsuccess!!",
    b"* OK IMAP4rev1 ready\r\n",
    b"",
]


@pytest.fixture(autouse=True)
def no_patience(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(gateway_port, "PATIENCE_S", 0.0)
    # The path of a Unix socket has at most 103 characters.
    with tempfile.TemporaryDirectory(dir="/tmp") as home:
        monkeypatch.setenv("HOME", home)
        yield


@asynccontextmanager
async def taken(answer: bytes) -> AsyncIterator[GatewayPort]:
    """The port of a gateway where something else answers so."""

    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert (await reader.readline()).startswith(b"GET /-/healthz ")
        writer.write(answer)
        writer.close()

    server = await asyncio.start_server(respond, "127.0.0.1", 0)
    async with server:
        number = server.sockets[0].getsockname()[1]
        yield GatewayPort(
            Starlette(), node="127.0.0.1", host=None, port=number, is_alone=lambda: True
        )


async def test_serves_proxy_is_named_and_the_remedy() -> None:
    async with taken(SERVES_PROXY) as port:
        with pytest.raises(OSError, match=r"proxy_location: Disabled") as refused:
            await open_port(port)
    assert refused.value.errno == errno.EADDRINUSE
    assert f"can't listen on 127.0.0.1:{port.address[1]}" in str(refused.value)


@pytest.mark.parametrize("answer", STRANGERS)
async def test_a_stranger_is_not_taken_for_it(answer: bytes) -> None:
    async with taken(answer) as port:
        with pytest.raises(OSError, match="can't listen on") as refused:
            await open_port(port)
    assert "proxy" not in str(refused.value)


async def test_a_free_port_opens() -> None:
    port = GatewayPort(Starlette(), node="127.0.0.1", host=None, port=0, is_alone=lambda: True)
    assert (await open_port(port)).startswith("http://127.0.0.1:")
    await port.close(timeout_s=0)
