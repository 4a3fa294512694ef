"""A cluster's gateways, as clients and Prometheus reach them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from email.utils import parsedate_to_datetime

from deployments.command.doctor.clock import check_clock
from deployments.command.doctor.finding import Finding, ok, warning, wrong
from deployments.command.doctor.host_list import Host
from deployments.command.fleet import Fleet
from deployments.command.server_url import ServerError, open_url

TIMEOUT_S = 5.0


@dataclass(frozen=True)
class GatewayReading:
    """``problem``: why it does not answer; ``not_ready``: why no engine answers through it."""

    host: Host
    url: str
    problem: str = ""
    not_ready: str = ""
    offset_s: float | None = None
    """By how much its clock is ahead, to a second."""


def read_gateway(host: Host, port: int) -> GatewayReading:
    url = f"http://{host.address}:{port}"
    try:
        with open_url(f"{url}/health", timeout_s=TIMEOUT_S, with_key=False) as response:
            date = response.headers.get("Date")
    except ServerError as error:
        return GatewayReading(host, url, problem=str(error))
    offset_s = _offset(date, time.time())
    try:
        open_url(f"{url}/ready", timeout_s=TIMEOUT_S, with_key=False).close()
    except ServerError as error:
        return GatewayReading(host, url, not_ready=str(error), offset_s=offset_s)
    return GatewayReading(host, url, offset_s=offset_s)


def check_gateway(reading: GatewayReading, *, knows_clock: bool) -> Iterator[Finding]:
    """``knows_clock``: it has been told already how far the host's clock is off."""
    for one in _findings(reading):
        yield replace(one, host=reading.host.name)
    if reading.offset_s is not None and not knows_clock:
        yield replace(check_clock(reading.offset_s), host=reading.host.name)


def _findings(reading: GatewayReading) -> Iterator[Finding]:
    if reading.problem:
        remedy = "`pomona-start` on that host, and let port and address through its firewall"
        yield wrong("Gateway", reading.problem, remedy)
    elif reading.not_ready:
        remedy = "see with `serve status` on the head why no engine answers"
        yield wrong("Gateway", reading.not_ready, remedy)
    else:
        yield ok("Gateway", f"{reading.url} is ready")


def check_engines(engines: list[Host], fleet: Fleet) -> Iterator[Finding]:
    """``engines``: the hosts that are to have one."""
    there = {one.node: one for one in fleet.of("engine")}
    for host in engines:
        member = there.get(host.address)
        if member is None:
            remedy = "see with `ray status` and `serve status` on the head what it waits for"
            found = wrong("Engine", "no gateway knows of one", remedy)
        elif member.error:
            remedy = "let all hosts reach each other at all ports from 1024 up"
            found = warning("Engine", f"it can't be reached from here: {member.error}", remedy)
        else:
            found = ok("Engine", f"serves {member.model}")
        yield replace(found, host=host.name)


def _offset(date: str | None, now: float) -> float | None:
    try:
        # It is cut to a second: on average it was half of one later.
        return parsedate_to_datetime(date).timestamp() + 0.5 - now if date else None
    except ValueError:
        return None
