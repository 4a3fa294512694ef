"""Property lists for launchd."""

from __future__ import annotations

import plistlib

from ops.cluster.host_list import HostList
from ops.cluster.units import OPEN_FILES, RESTART_S, Service, script_path


def label(service: Service) -> str:
    return f"com.pomona.{service.name}"


def unit_name(service: Service) -> str:
    return f"{label(service)}.plist"


def unit(service: Service, hosts: HostList) -> str:
    log = f"{hosts.state}/log/{service.name}.log"
    limits = {"NumberOfFiles": OPEN_FILES}
    job = {
        "Label": label(service),
        "ProgramArguments": [script_path(service, hosts)],
        "UserName": hosts.user,
        "WorkingDirectory": hosts.state,
        "RunAtLoad": True,
        "KeepAlive": True,
        "ThrottleInterval": RESTART_S,
        "ExitTimeOut": service.stop_timeout_s,
        # Interactive: macOS does not hold a server back as it does a background job.
        "ProcessType": "Interactive",
        "SoftResourceLimits": limits,
        "HardResourceLimits": limits,
        "Umask": 0o077,
        "StandardOutPath": log,
        "StandardErrorPath": log,
    }
    return plistlib.dumps(job, sort_keys=False).decode()
