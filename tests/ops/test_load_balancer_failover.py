"""Gateways that drain, die and come back behind real load balancers, which are reloaded, too."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import httpx
import pytest

from deployments.http.error_responses import error_response
from deployments.http.errors import ApiError
from deployments.settings import GatewaySettings
from tests.support.deployments.fake_backend import FakeBackend
from tests.support.deployments.gateway_harness import fake_replica, gateway
from tests.support.ops.balancer_harness import (
    DEADLINE_S,
    PATH,
    VANISH,
    Balancer,
    FakeGateway,
    balancing,
    each_balancer,
    gateways,
    needs,
    plan_for,
)

pytestmark = pytest.mark.serve

UNAVAILABLE = ApiError(503, "No replica.", type="service_unavailable", headers={"Retry-After": "9"})


async def open_stream(balancer: Balancer, gateway: FakeGateway) -> httpx.Response:
    """A stream that ``gateway`` has begun; others must not stream."""
    gateway.streams = True
    gateway.events.put_nowait("first")
    async with asyncio.timeout(DEADLINE_S):
        while True:
            request = balancer.client.build_request("POST", PATH, json={})
            response = await balancer.client.send(request, stream=True)
            if response.headers["content-type"].startswith("text/event-stream"):
                gateway.streams = False
                return response
            await response.aread()


async def served_by(balancer: Balancer, *, times: int = 8) -> set[str]:
    """Who answers; that nobody fails is checked."""
    answers = [await balancer.ask() for _ in range(times)]
    assert {answer.status_code for answer in answers} == {200}
    return {answer.json()["gateway"] for answer in answers}


@pytest.mark.parametrize("kind", [pytest.param("haproxy", marks=needs("haproxy"))])
async def test_a_draining_gateway_gets_no_new_request_and_ends_its_streams(
    kind: str, tmp_path: Path
) -> None:
    async with gateways(2) as both, balancing(kind, plan_for(tmp_path, both)) as balancer:
        leaving, staying = both
        stream = await open_stream(balancer, leaving)
        leaving.is_ready = False
        await balancer.sees(leaving.address, "DOWN")
        assert await served_by(balancer) == {staying.name}
        await assert_goes_on(stream, leaving)
        leaving.is_ready = True
        await balancer.sees(leaving.address, "UP")
        assert await served_by(balancer) == {leaving.name, staying.name}


@needs("haproxy")
async def test_gateways_say_that_they_drain_or_have_no_replica(tmp_path: Path) -> None:
    backend = FakeBackend()
    async with fake_replica(backend) as replica, gateway([replica], keys=["a-key"]) as running:
        address = running.url.removeprefix("http://")
        async with balancing("haproxy", plan_for(tmp_path, [address])) as balancer:
            await balancer.sees(address, "UP")
            running.app.state.draining = True
            await balancer.sees(address, "DOWN")
            running.app.state.draining = False
            await balancer.sees(address, "UP")
            backend.healthy = False
            await balancer.sees(address, "DOWN")


async def assert_goes_on(stream: httpx.Response, gateway: FakeGateway) -> None:
    gateway.events.put_nowait("last")
    gateway.events.put_nowait(None)
    assert await stream.aread() == b"data: first\n\ndata: last\n\n"


@each_balancer
async def test_no_request_fails_when_a_gateway_goes_and_comes_back(
    kind: str, tmp_path: Path
) -> None:
    async with gateways(3) as all_three, balancing(kind, plan_for(tmp_path, all_three)) as balancer:
        leaving, *staying = all_three
        names = {one.name for one in staying}
        assert await served_by(balancer) == {leaving.name} | names
        await leaving.stop()
        # At once: not only when a check has noticed.
        assert await served_by(balancer, times=30) == names
        await leaving.start()
        async with asyncio.timeout(DEADLINE_S):
            while leaving.name not in await served_by(balancer):
                await asyncio.sleep(0.1)


@needs("nginx")
async def test_no_request_fails_when_the_next_gateway_goes_as_the_first_is_back(
    tmp_path: Path,
) -> None:
    """Sooner than nginx looks again at the first one."""
    async with gateways(2) as both, balancing("nginx", plan_for(tmp_path, both)) as balancer:
        for leaving, staying in (both, both[::-1]):
            await leaving.stop()
            assert await served_by(balancer, times=30) == {staying.name}
            await leaving.start()


@each_balancer
async def test_a_stream_that_loses_its_gateway_does_not_look_complete(
    kind: str, tmp_path: Path
) -> None:
    async with gateways(1) as [one], balancing(kind, plan_for(tmp_path, [one])) as balancer:
        stream = await open_stream(balancer, one)
        one.events.put_nowait(VANISH)
        with pytest.raises(httpx.RemoteProtocolError):
            await stream.aread()


@needs("haproxy")
async def test_a_stream_of_a_gateway_that_hangs_is_cut_and_an_answer_in_one_piece_is_not(
    tmp_path: Path,
) -> None:
    settings = GatewaySettings(
        keep_alive_interval_s=0.2, stall_timeout_s=0.4, resume_timeout_s=0.1, request_timeout_s=60
    )
    async with gateways(1) as [hangs]:
        plan = plan_for(tmp_path, [hangs], settings=settings)
        assert plan.stream_patience_s == 1
        async with balancing("haproxy", plan) as balancer:
            hangs.streams = True
            hangs.events.put_nowait("first")
            begun = balancer.client.build_request("POST", PATH, json={"of": {"stream": True}})
            other = await balancer.client.send(begun, stream=True)
            with pytest.raises(httpx.RemoteProtocolError):
                await balancer.ask(json={"messages": [], "stream": True})
            await assert_goes_on(other, hangs)


@asynccontextmanager
async def dying_gateway() -> AsyncIterator[tuple[FakeGateway, list[bytes]]]:
    """Passes health checks, and closes the connection of any request that it has read."""
    gateway, requests = FakeGateway(name="dying"), list[bytes]()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET /ready"):
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        else:
            length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            requests.append(await reader.readexactly(length))
        writer.close()

    host, _, port = gateway.address.partition(":")
    async with await asyncio.start_server(serve, host, int(port)):
        yield gateway, requests


@each_balancer
@pytest.mark.parametrize("size", [10, 100_000])
async def test_what_a_gateway_dies_of_is_answered_by_the_next(
    kind: str, tmp_path: Path, size: int
) -> None:
    async with (
        gateways(1) as [alive],
        dying_gateway() as (dying, requests),
        balancing(kind, plan_for(tmp_path, [dying, alive])) as balancer,
        asyncio.timeout(DEADLINE_S),
    ):
        body = b"x" * size
        while not requests:
            assert (await balancer.ask(content=body)).json() == {"gateway": alive.name}
        assert requests[0] == alive.requests[-1].body == body


@each_balancer
async def test_a_request_that_a_gateway_has_no_replica_for_goes_to_another(
    kind: str, tmp_path: Path
) -> None:
    async with gateways(2) as both, balancing(kind, plan_for(tmp_path, both)) as balancer:
        without, fine = both
        without.answer = error_response(UNAVAILABLE)
        async with asyncio.timeout(DEADLINE_S):
            while not without.requests:
                assert await served_by(balancer, times=1) == {fine.name}


@each_balancer
async def test_when_all_refuse_the_client_hears_it_from_a_gateway(
    kind: str, tmp_path: Path
) -> None:
    async with gateways(2) as both, balancing(kind, plan_for(tmp_path, both)) as balancer:
        for one in both:
            one.answer = error_response(UNAVAILABLE)
        refused = await balancer.ask()
        assert refused.status_code == 503
        assert refused.headers["retry-after"] == "9"
        assert refused.json() == UNAVAILABLE.body()
        # Tried again, but not for ever.
        assert sum(len(one.requests) for one in both) in (2, 3)


@each_balancer
async def test_backups_serve_while_no_other_gateway_is_up(kind: str, tmp_path: Path) -> None:
    async with gateways(2) as [own, other]:
        plan = plan_for(tmp_path, [own], backups=[other.address])
        async with balancing(kind, plan) as balancer:
            assert await served_by(balancer) == {own.name}
            await own.stop()
            assert await served_by(balancer) == {other.name}
            await own.start()
            async with asyncio.timeout(DEADLINE_S):
                while await served_by(balancer) != {own.name}:
                    await asyncio.sleep(0.1)


@each_balancer
async def test_streams_outlive_a_reload(kind: str, tmp_path: Path) -> None:
    async with gateways(2) as [old, new], balancing(kind, plan_for(tmp_path, [old])) as balancer:
        stream = await open_stream(balancer, old)
        plan = replace(balancer.plan, gateways=[new.address])
        async with asyncio.timeout(DEADLINE_S):
            # A connection stays with the process that it was made to.
            while await asked_anew(balancer) != new.name:
                # HAProxy loses a signal that comes while it starts.
                balancer.reload(plan)
                await asyncio.sleep(0.5)
        await assert_goes_on(stream, old)
        assert balancer.process.poll() is None


async def asked_anew(balancer: Balancer) -> str:
    async with httpx.AsyncClient(base_url=balancer.url, timeout=30) as client:
        answer = await client.post(PATH, json={})
        assert answer.status_code == 200
        name: str = answer.json()["gateway"]
        return name
