"""What is no HTTP, as nginx answers it itself; HAProxy closes, or leaves it to a gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.support.deployments.raw_client import connected
from tests.support.ops.balancer_harness import (
    DEADLINE_S,
    balancing,
    each_balancer,
    gateways,
    needs,
    plan_for,
)

pytestmark = pytest.mark.serve

MALFORMED = {
    "noise": b"\x80\x81\x82\r\n\r\n",
    "no path": b"GET\r\n\r\n",
    "a path without a slash": b"GET v1 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a null in a path": b"GET /\0 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a path out of the root": b"GET /../ HTTP/1.1\r\nHost: x\r\n\r\n",
    "half an escape": b"GET /%2 HTTP/1.1\r\nHost: x\r\n\r\n",
    "an unknown version": b"GET / HTTP/3.0\r\nHost: x\r\n\r\n",
    "no version": b"GET / HTTP/x\r\nHost: x\r\n\r\n",
    "no host": b"GET /v1/models HTTP/1.1\r\n\r\n",
    "two hosts": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nHost: y\r\n\r\n",
    "a length that is none": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nContent-Length: -1\r\n\r\n",
    "an unknown coding": b"POST /v1/models HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: gzip\r\n\r\n",
    "TRACE": b"TRACE /v1/models HTTP/1.1\r\nHost: x\r\n\r\n",
    "CONNECT": b"CONNECT x:443 HTTP/1.1\r\nHost: x\r\n\r\n",
    "a long path": b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\nHost: x\r\n\r\n",
    "a long header": b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-A: " + b"a" * 100_000 + b"\r\n\r\n",
}


@needs("nginx")
async def test_what_is_malformed_is_told_in_the_shape_of_all_errors(tmp_path: Path) -> None:
    answered: dict[str, tuple[int, str]] = {}
    async with gateways(1) as [one], balancing("nginx", plan_for(tmp_path, [one])) as balancer:
        for name, sent in MALFORMED.items():
            async with connected(balancer.url) as raw:
                raw.writer.write(sent)
                async with asyncio.timeout(DEADLINE_S):
                    answer = await raw.reader.read()
            head, _, body = answer.partition(b"\r\n\r\n")
            is_json = b"application/json" in head.lower() and b'"error"' in body
            answered[name] = (int(head.split()[1]), "JSON" if is_json else body.decode("latin-1"))
    assert answered == dict.fromkeys(MALFORMED, (400, "JSON"))
    assert one.requests == []


@each_balancer
async def test_bytes_that_are_no_utf8_in_a_header_are_the_gateways_to_read(
    tmp_path: Path, kind: str
) -> None:
    async with gateways(1) as [one], balancing(kind, plan_for(tmp_path, [one])) as balancer:
        async with connected(balancer.url) as raw:
            raw.writer.write(b"GET /v1/models HTTP/1.1\r\nHost: x\r\nX-Request-Id: caf\xe9\r\n\r\n")
            status, _ = await raw.response()
        assert status == 200
    [request] = one.requests
    assert request.headers["x-request-id"] == "café"
