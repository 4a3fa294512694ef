"""The ``install`` and ``uninstall`` scripts of a host: a few values, then shell that is the same
for all hosts of a system."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from ops.cluster.host_list import Host, HostList
from ops.cluster.units import Service

FOLDER = Path(__file__).parent
UNIT_FOLDERS = {"linux": "/etc/systemd/system", "macos": "/Library/LaunchDaemons"}
UNINSTALLED = """
cd "$services"
rm -f pomona pomona-* environment auth_token cluster.yaml redis.conf store-*
echo "Left are $state, what is in ~$user/.pomona, and what others put into $services."
"""


def install_script(host: Host, hosts: HostList, services: Sequence[Service]) -> str:
    purpose = (
        "Puts the files beside it in their places and starts the services; again after a change."
    )
    values = _values(host, hosts, services)
    return _start(purpose, values) + _shell("common") + _shell(f"install-{host.system}")


def uninstall_script(host: Host, hosts: HostList, services: Sequence[Service]) -> str:
    purpose = "Stops the services, when running streams have ended, and removes them."
    values = _values(host, hosts, services)
    del values["package"]
    return _start(purpose, values) + _shell(f"uninstall-{host.system}") + UNINSTALLED


def _values(host: Host, hosts: HostList, services: Sequence[Service]) -> dict[str, str]:
    return {
        "user": hosts.user,
        "package": hosts.package,
        "services": hosts.services,
        "state": hosts.state,
        "units": UNIT_FOLDERS[host.system],
        # The store comes first: a head needs it.
        "names": " ".join(service.name for service in services),
    }


def _start(purpose: str, values: dict[str, str]) -> str:
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    return "\n".join(["#!/bin/sh", f"# {purpose}", "set -eu", "", *lines, "", ""])


def _shell(name: str) -> str:
    return (FOLDER / f"{name}.sh").read_text()
