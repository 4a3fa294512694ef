"""What a cluster's hosts say of themselves: each one's own doctor, over ssh."""

from __future__ import annotations

import shlex
import subprocess
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from pydantic import TypeAdapter, ValidationError

from deployments.command.doctor.finding import Finding, warning
from deployments.command.doctor.host_list import Host, HostList
from deployments.command.doctor.report import Printed

TIMEOUT_S = 180.0
SSH = ("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=5")


REPORT = TypeAdapter(Printed)


@dataclass(frozen=True)
class HostReport:
    """``offset_s``: by how much its clock is ahead of the one here; None if nobody knows."""

    host: Host
    findings: tuple[Finding, ...] = ()
    versions: Mapping[str, str] = field(default_factory=dict)
    offset_s: float | None = None


def ask(host: Host, hosts: HostList, config: str) -> HostReport:
    """``config``: the Serve config that is deployed, as text."""
    command = [*SSH, host.name, "sh -c " + shlex.quote(script(host, hosts))]
    try:
        done = subprocess.run(
            command, input=config, capture_output=True, text=True, timeout=TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return _silent(host, str(error))
    return parse_report(host, done.stdout, done.stderr, now=time.time())


def script(host: Host, hosts: HostList) -> str:
    """Shell text: as the cluster's user if that may be, in the cluster's environment if there is
    one already."""
    asked = ["pomona", "doctor", "--json", "--config", "/dev/stdin", "--unattended"]
    asked += ["--services", hosts.services, "--roles", ",".join(host.roles)]
    asked += ["--ray-ports", ",".join(map(str, hosts.rays_ports(host)))]
    own = f"{hosts.services}/pomona"
    as_user = f"sudo -n -H -u {shlex.quote(hosts.user)}"
    return (
        f"if {as_user} test -x {shlex.quote(own)} 2>/dev/null; "
        f"then exec {as_user} {shlex.quote(own)} {shlex.join(asked)}; fi; "
        f"exec {shlex.quote(hosts.package)}/.venv/bin/{shlex.join(asked)}"
    )


def parse_report(host: Host, printed: str, complaint: str, *, now: float) -> HostReport:
    """``now``: when it was printed, by the clock here."""
    try:
        told = REPORT.validate_json(printed)
    except ValidationError:
        lines = [line for line in complaint.strip().splitlines() if line]
        return _silent(host, lines[-1] if lines else "its answer is none of `pomona doctor`")
    findings = tuple(replace(one, host=host.name) for one in told.findings)
    return HostReport(host, findings, told.versions, told.time - now)


def _silent(host: Host, problem: str) -> HostReport:
    remedy = f"`ssh {host.name}` has to work without a question; or run `pomona doctor` there"
    return HostReport(host, (replace(warning("Host", problem, remedy), host=host.name),))
