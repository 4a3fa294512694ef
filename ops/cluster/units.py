"""What keeps a host's services running: which there are, and what launchd and systemd need."""

from __future__ import annotations

from dataclasses import dataclass

from ops.cluster.host_list import Host, HostList

# Every connection of a gateway or replica is a file.
OPEN_FILES = 65536
RESTART_S = 5
# Past the drain, for processes to end.
STOP_MARGIN_S = 30


# Once a day runs a script of the same name.
CLEAN = "clean"
CLEAN_DESCRIPTION = "Pomona: old logs"


@dataclass(frozen=True)
class Service:
    """A script, ``pomona-{name}``, that is to run always."""

    name: str
    description: str
    stop_timeout_s: int
    # What Ray ends with when it is told to stop.
    stop_status: int = 0


def services(host: Host, hosts: HostList, drain_timeout_s: int) -> tuple[Service, ...]:
    found = []
    if "store" in host.roles:
        found.append(Service("store", "Pomona: the store of Ray's head", STOP_MARGIN_S))
    # The head may end alone, and does when its store is away.
    if host == hosts.head:
        found.append(Service("head", "Pomona: Ray's head", STOP_MARGIN_S, stop_status=1))
    if hosts.serves(host):
        stop = drain_timeout_s + STOP_MARGIN_S
        found.append(Service("ray", f"Pomona: {', '.join(host.roles)}", stop, stop_status=1))
    if hosts.has_heartbeat(host):
        found.append(Service("heartbeat", "Pomona: requests made to be watched", STOP_MARGIN_S))
    return tuple(found)


def script_path(name: str, hosts: HostList) -> str:
    return f"{hosts.services}/pomona-{name}"
