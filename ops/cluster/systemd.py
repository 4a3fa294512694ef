"""Units for systemd."""

from __future__ import annotations

from ops.cluster.host_list import HostList
from ops.cluster.units import OPEN_FILES, RESTART_S, Service, script_path


def unit_name(service: Service) -> str:
    return f"pomona-{service.name}.service"


def unit(service: Service, hosts: HostList) -> str:
    return f"""\
[Unit]
Description={service.description}
Wants=network-online.target
After=network-online.target
# However long the rest of the cluster is away, this goes on trying.
StartLimitIntervalSec=0

[Service]
User={hosts.user}
WorkingDirectory={hosts.state}
ExecStart={script_path(service, hosts)}
Restart=always
RestartSec={RESTART_S}
# Ray drains its host when its first process, and that alone, is told to end.
KillMode=mixed
TimeoutStopSec={service.stop_timeout_s}
SuccessExitStatus={service.stop_status}
LimitNOFILE={OPEN_FILES}
UMask=0077
NoNewPrivileges=true

[Install]
WantedBy=multi-user.target
"""
