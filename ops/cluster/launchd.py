"""Property lists for launchd."""

from __future__ import annotations

import plistlib
from typing import Any

from ops.cluster.host_list import HostList
from ops.cluster.units import CLEAN, OPEN_FILES, RESTART_S, Service, script_path


def unit_name(service: Service) -> str:
    return _file_name(service.name)


def unit(service: Service, hosts: HostList) -> str:
    limits = {"NumberOfFiles": OPEN_FILES}
    job = _job(service.name, hosts) | {
        "RunAtLoad": True,
        "KeepAlive": True,
        "ThrottleInterval": RESTART_S,
        "ExitTimeOut": service.stop_timeout_s,
        # Interactive: macOS does not hold a server back as it does a background job.
        "ProcessType": "Interactive",
        "SoftResourceLimits": limits,
        "HardResourceLimits": limits,
    }
    return plistlib.dumps(job, sort_keys=False).decode()


def clean_units(hosts: HostList) -> dict[str, str]:
    """By file name."""
    at_night = {"Hour": 4, "Minute": 0}
    job = _job(CLEAN, hosts) | {"StartCalendarInterval": at_night, "ProcessType": "Background"}
    return {_file_name(CLEAN): plistlib.dumps(job, sort_keys=False).decode()}


def _file_name(name: str) -> str:
    return f"com.pomona.{name}.plist"


def _job(name: str, hosts: HostList) -> dict[str, Any]:
    log = f"{hosts.state}/log/{name}.log"
    return {
        "Label": f"com.pomona.{name}",
        "ProgramArguments": [script_path(name, hosts)],
        "UserName": hosts.user,
        "WorkingDirectory": hosts.state,
        "Umask": 0o077,
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }
