"""The scripts of a host that root runs: a few values, then shell that is the same for all hosts of
a system."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from ops.cluster.host_list import Host, HostList
from ops.cluster.units import CLEAN, Service

FOLDER = Path(__file__).parent
UNIT_FOLDERS = {"linux": "/etc/systemd/system", "macos": "/Library/LaunchDaemons"}


def root_scripts(host: Host, hosts: HostList, services: Sequence[Service]) -> dict[str, str]:
    """By name."""
    # The store comes first: a head needs it.
    names = [service.name for service in services]
    places = {"services": hosts.services, "units": UNIT_FOLDERS[host.system]}
    user = {"user": hosts.user, "state": hosts.state}
    up, down = " ".join(names), " ".join(reversed(names))
    return {
        "install": _script(
            "Puts the files beside it in their places and starts what they change.",
            places | user | {"package": hosts.package, "names": f"{up} {CLEAN}"},
            ("checks", host.system, "files", "start"),
        ),
        "uninstall": _script(
            "Stops the services, when running streams have ended, and removes them.",
            places | user | {"names": f"{down} {CLEAN}"},
            ("checks", host.system, "remove"),
        ),
        "pomona-start": _script(
            "Starts the services, or those that are named.",
            places | {"names": up},
            ("checks", host.system, "choice", "start"),
        ),
        "pomona-stop": _script(
            "Stops the services, or those that are named, until pomona-start. Streams end first.",
            places | {"names": down},
            ("checks", host.system, "choice", "stop"),
        ),
    }


def _script(purpose: str, values: Mapping[str, str], parts: Sequence[str]) -> str:
    lines = [f"{name}={shlex.quote(value)}" for name, value in values.items()]
    start = "\n".join(["#!/bin/sh", f"# {purpose}", "set -eu", "", *lines, "", ""])
    return start + "".join((FOLDER / f"{part}.sh").read_text() for part in parts)
