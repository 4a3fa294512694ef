"""Streams that their clients do not read, through a gateway to the backend behind its replica."""

from __future__ import annotations

import asyncio
import json
import socket
from urllib.parse import urlsplit

from deployments.http.bounded_protocol import ClientTimeouts
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import CHAT, fake_replica, gateway, outcomes
from tests.support.deployments.raw_client import DEADLINE_S

BODY = json.dumps(
    {**CHAT, "n": 16, "logprobs": True, "top_logprobs": 20, "ignore_eos": True, "stream": True}
).encode()
REQUEST = (
    b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%b"
    % (len(BODY), BODY)
)
MOST_TOKENS = 3000
"""In all the buffers on the way, at some hundred bytes each; of 1.6 million."""


async def test_who_never_reads_holds_its_engine_back_and_is_cut_off() -> None:
    backend = FakeBackend()
    async with (
        fake_replica(backend, max_model_len=100_000) as replica,
        gateway([replica], timeouts=ClientTimeouts(send_s=0.5)) as running,
        asyncio.timeout(DEADLINE_S),
    ):
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.connect((urlsplit(running.url).hostname, urlsplit(running.url).port))
            client.sendall(REQUEST)
            await backend.live.reaches(1)
            await backend.live.reaches(0)
        assert backend.stats().generation_tokens < MOST_TOKENS
        assert await outcomes(running) == {("demo", "client_gone"): 1}
