"""Every check of a cluster: each host by itself, all of them together, and the gateways."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from deployments.command.doctor.clock import check_clock
from deployments.command.doctor.finding import Finding
from deployments.command.doctor.gateways import (
    GatewayReading,
    check_engines,
    check_gateway,
    read_gateway,
)
from deployments.command.doctor.host_list import Host, HostList
from deployments.command.doctor.remote import HostReport, ask
from deployments.command.doctor.versions import check_alike
from deployments.command.fleet import Fleet, read_fleet
from deployments.command.server_url import ServerError

MOST_AT_ONCE = 32


@dataclass(frozen=True)
class ClusterReading:
    reports: Sequence[HostReport]
    gateways: Sequence[GatewayReading]
    fleet: Fleet | None
    """As one of the gateways tells of it; None if none does."""


def read_cluster(
    hosts: HostList,
    config: str,
    gateway_port: int,
    *,
    with_ssh: bool,
    ask_host: Callable[[Host, HostList, str], HostReport] = ask,
) -> ClusterReading:
    """``config``: the Serve config that is deployed, as text."""
    # All at once: a host that is lost is silent until the time is over.
    with ThreadPoolExecutor(max_workers=MOST_AT_ONCE) as pool:
        asked = [pool.submit(ask_host, one, hosts, config) for one in hosts.hosts if with_ssh]
        gateways = list(pool.map(lambda one: read_gateway(one, gateway_port), hosts.gateways))
        reports = [one.result() for one in asked]
    return ClusterReading(reports, gateways, _fleet(gateways))


def check_cluster(hosts: HostList, reading: ClusterReading) -> Iterator[Finding]:
    for report in reading.reports:
        yield from report.findings
        if report.offset_s is not None:
            yield replace(check_clock(report.offset_s), host=report.host.name)
    known = {one.host for one in reading.reports if one.offset_s is not None}
    for gateway in reading.gateways:
        yield from check_gateway(gateway, knows_clock=gateway.host in known)
    if reading.fleet is not None:
        engines = [host for host in hosts.hosts if "engine" in host.roles]
        yield from check_engines(engines, reading.fleet)
    yield from check_alike(_versions(hosts, reading))


def _versions(hosts: HostList, reading: ClusterReading) -> Mapping[str, Mapping[str, str]]:
    """Of each host that says so itself, or whose engine or gateway does."""
    names = {host.address: host.name for host in hosts.hosts}
    found: dict[str, Mapping[str, str]] = {}
    for member in reading.fleet.members if reading.fleet else ():
        if member.versions and member.node in names:
            found[names[member.node]] = member.versions
    return found | {one.host.name: one.versions for one in reading.reports if one.versions}


def _fleet(gateways: Sequence[GatewayReading]) -> Fleet | None:
    for gateway in gateways:
        if not gateway.problem:
            try:
                return read_fleet(gateway.url)
            except ServerError:
                continue
    return None
