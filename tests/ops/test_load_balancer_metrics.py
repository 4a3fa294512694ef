"""What HAProxy and nginx tell Prometheus is what the error budget is computed from."""

from __future__ import annotations

import asyncio
import re
import subprocess
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import httpx
import pytest
from starlette.responses import Response

from ops.prometheus.objectives import read_indicators
from tests.support.ops.balancer_harness import (
    DEADLINE_S,
    PATH,
    VANISH,
    Balancer,
    FakeGateway,
    balancing,
    free_address,
    gateways,
    needs,
    plan_for,
)

pytestmark = pytest.mark.serve

PROGRAM = Path(__file__).resolve().parents[2] / "ops" / "load_balancer" / "nginx.mtail"
SAMPLE = re.compile(r"^(\w+)\{(.*)\} (\S+)$", re.MULTILINE)
LABEL = re.compile(r'(\w+)="([^"]*)"')


@contextmanager
def mtail(directory: Path) -> Iterator[str]:
    """Counts in nginx' logs. Yields where it tells of it."""
    address = free_address()
    host, _, port = address.partition(":")
    logs = [directory / name for name in ("pomona-access.log", "pomona-error.log")]
    command = ["mtail", "--progs", PROGRAM, "--address", host, "--port", port, "--logtostderr"]
    with (directory / "mtail.out").open("wb") as out:
        options = [option for log in logs for option in ("--logs", log)]
        process = subprocess.Popen([*command, *options], stdout=out, stderr=out)
    try:
        yield address
    finally:
        process.terminate()
        process.wait(DEADLINE_S)


@asynccontextmanager
async def watched(
    kind: str, directory: Path, in_front_of: list[FakeGateway]
) -> AsyncIterator[tuple[Balancer, str]]:
    """The balancer, and the address of its metrics."""
    async with balancing(kind, plan_for(directory, in_front_of)) as balancer:
        if kind == "haproxy":
            for gateway in in_front_of:
                await balancer.sees(gateway.address, "UP")
            yield balancer, balancer.plan.status
        else:
            with mtail(directory) as address:
                yield balancer, address


async def counted(address: str) -> tuple[float, float]:
    """Bad answers and all, as the rules pick them out of the metrics at ``address``."""
    async with httpx.AsyncClient() as http:
        try:
            text = (await http.get(f"http://{address}/metrics")).text
        except httpx.ConnectError:
            return -1, -1
    [indicator] = [one for one in read_indicators() if one.group == "balancers"]
    return matching(indicator.bad, text), matching(indicator.all, text)


def matching(query: str, text: str) -> float:
    """The sum of the samples in ``text`` that the selector in ``query`` takes."""
    wanted = dict(re.findall(r'(\w+)=~"([^"]*)"', query))
    total = 0.0
    for name, labels, value in SAMPLE.findall(text):
        found = dict(LABEL.findall(labels)) | {"__name__": name}
        if all(re.fullmatch(values, found.get(key, "")) for key, values in wanted.items()):
            total += float(value)
    return total


async def until_counted(address: str, bad: float, of: float) -> None:
    last = None
    try:
        async with asyncio.timeout(DEADLINE_S):
            while (last := await counted(address)) != (bad, of):
                await asyncio.sleep(0.05)
    except TimeoutError:
        pytest.fail(f"{last} were counted, not {(bad, of)}")


async def stream(balancer: Balancer, gateway: FakeGateway, end: str | None) -> None:
    gateway.events.put_nowait("one")
    async with balancer.client.stream("POST", PATH, json={}) as response:
        lines = response.aiter_lines()
        await anext(lines)
        gateway.events.put_nowait(end)
        async for _ in lines:
            pass


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("haproxy", marks=needs("haproxy")),
        pytest.param("nginx", marks=[needs("nginx"), needs("mtail")]),
    ],
)
async def test_what_is_refused_and_what_is_cut_is_counted(kind: str, tmp_path: Path) -> None:
    async with gateways(1) as [gateway], watched(kind, tmp_path, [gateway]) as (balancer, address):
        await until_counted(address, 0, 0)
        await balancer.ask()
        await balancer.client.get("/v1/nothing 500 request_id=of-mine")
        await until_counted(address, 0, 2)
        gateway.answer = Response(status_code=400)
        await balancer.ask()
        await balancer.client.get("/metrics")
        gateway.streams = True
        await stream(balancer, gateway, None)
        await until_counted(address, 0, 3)
        with pytest.raises(httpx.RemoteProtocolError):
            await stream(balancer, gateway, VANISH)
        await until_counted(address, 1, 4)
        await gateway.stop()
        assert (await balancer.ask()).status_code == 503
        await until_counted(address, 2, 5)
