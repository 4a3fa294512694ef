"""TLS between clients and real load balancers."""

from __future__ import annotations

import asyncio
import socket
import ssl
import subprocess
from pathlib import Path

import httpx
import pytest

from tests.support.ops.balancer_harness import (
    DEADLINE_S,
    PATH,
    balancing,
    each_balancer,
    free_address,
    gateways,
    needs,
    plan_for,
    until,
)

pytestmark = [pytest.mark.serve, each_balancer, needs("openssl"), needs("curl")]


def trusting(certificate: Path) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=str(certificate))


async def curl(*arguments: str | Path) -> str:
    command = ("--silent", "--show-error", "--max-time", str(DEADLINE_S), *map(str, arguments))
    process = await asyncio.create_subprocess_exec("curl", *command, stdout=subprocess.PIPE)
    out, _ = await process.communicate()
    assert process.returncode == 0
    return out.decode()


async def test_a_client_that_trusts_the_certificate_is_served(
    kind: str, tmp_path: Path, certificate: Path
) -> None:
    async with gateways(1) as [one]:
        plan = plan_for(tmp_path, [one], certificate=certificate)
        async with balancing(kind, plan, verify=trusting(certificate)) as balancer:
            assert (await balancer.ask()).json() == {"gateway": one.name}
            assert one.requests[0].headers["x-forwarded-proto"] == "https"
            async with httpx.AsyncClient() as stranger:
                with pytest.raises(httpx.ConnectError, match="CERTIFICATE_VERIFY_FAILED"):
                    await stranger.post(balancer.url + PATH, json={})


async def test_streams_come_over_http_2(kind: str, tmp_path: Path, certificate: Path) -> None:
    async with gateways(1) as [one]:
        plan = plan_for(tmp_path, [one], certificate=certificate)
        async with balancing(kind, plan, verify=trusting(certificate)) as balancer:
            one.streams = True
            one.events.put_nowait("first")
            out = ("--output", tmp_path / "events", "--write-out", "%{http_version} %{http_code}")
            ask = ("--http2", "--no-buffer", "--cacert", certificate, "--data", "{}")
            told = asyncio.create_task(curl(*out, *ask, balancer.url + PATH))
            await until(lambda: events_in(tmp_path) == "data: first\n\n")
            one.events.put_nowait("second")
            await until(lambda: events_in(tmp_path) == "data: first\n\ndata: second\n\n")
            one.events.put_nowait(None)
            assert await told == "2 200"


def events_in(folder: Path) -> str:
    path = folder / "events"
    return path.read_text() if path.exists() else ""


async def test_plain_http_is_sent_to_tls(kind: str, tmp_path: Path, certificate: Path) -> None:
    async with gateways(1) as [one]:
        plain = free_address()
        plan = plan_for(tmp_path, [one], certificate=certificate, redirect_from=plain)
        async with balancing(kind, plan), httpx.AsyncClient() as client:
            answer = await client.post(f"http://{plain}{PATH}?a=b", json={})
            assert answer.status_code == 308
            assert answer.headers["location"] == f"https://{plan.listen[0]}{PATH}?a=b"
            assert one.requests == []


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion.TLSv1_1:DeprecationWarning")
async def test_versions_before_1_2_are_refused(
    kind: str, tmp_path: Path, certificate: Path
) -> None:
    async with gateways(1) as [one]:
        plan = plan_for(tmp_path, [one], certificate=certificate)
        async with balancing(kind, plan, verify=trusting(certificate)):
            assert negotiated(plan.listen[0], certificate, ssl.TLSVersion.TLSv1_2) == "TLSv1.2"
            assert negotiated(plan.listen[0], certificate, ssl.TLSVersion.TLSv1_3) == "TLSv1.3"
            with pytest.raises(ssl.SSLError, match="ALERT_PROTOCOL_VERSION"):
                negotiated(plan.listen[0], certificate, ssl.TLSVersion.TLSv1_1)


def negotiated(address: str, certificate: Path, version: ssl.TLSVersion) -> str | None:
    context = trusting(certificate)
    context.minimum_version = context.maximum_version = version
    # Or OpenSSL itself would not even ask.
    context.set_ciphers("DEFAULT:@SECLEVEL=0")
    host, _, port = address.partition(":")
    with (
        socket.create_connection((host, int(port)), timeout=30) as plain,
        context.wrap_socket(plain, server_hostname=host) as secured,
    ):
        return secured.version()
