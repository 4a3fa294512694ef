"""Servers inside the cluster, called by names that are not theirs."""

from __future__ import annotations

import socket

import pytest
from starlette.types import Receive, Scope, Send

from deployments.http.own_host import OwnHostMiddleware
from tests.support.deployments.gateway_harness import serving
from tests.support.deployments.raw_client import connected


async def ok(scope: Scope, receive: Receive, send: Send) -> None:
    if scope["type"] == "http":
        headers = [(b"content-length", b"2")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b"ok"})


NAME = socket.gethostname()


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("127.0.0.1", 200),
        ("127.0.0.1:9000", 200),
        ("[::ffff:127.0.0.1]:9000", 200),
        ("localhost:9000", 200),
        ("LOCALHOST.", 200),
        ("mini-7.example:9000", 200),
        (NAME, 200),
        (NAME.upper(), 200),
        (f"{NAME.partition('.')[0]}.local:9000", 200),
        ("", 403),
        ("evil.test", 403),
        ("evil.test:9000", 403),
        ("localhost.evil.test", 403),
        ("127.0.0.1.evil.test", 403),
        ("10.9.8.7", 403),
        ("[::2]", 403),
        ("[127.0.0.1", 200),
    ],
)
async def test_a_server_answers_to_its_own_addresses_and_names(host: str, status: int) -> None:
    app = OwnHostMiddleware(ok, host="mini-7.example")
    async with serving(app) as url, connected(url) as raw:
        await raw.send(f"GET /metrics HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
        assert (await raw.response())[0] == status
