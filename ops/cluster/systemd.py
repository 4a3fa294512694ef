"""Units for systemd."""

from __future__ import annotations

from ops.cluster.host_list import HostList
from ops.cluster.units import (
    CLEAN,
    CLEAN_DESCRIPTION,
    OPEN_FILES,
    RESTART_S,
    Service,
    script_path,
)


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
ExecStart={script_path(service.name, hosts)}
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


def clean_units(hosts: HostList) -> dict[str, str]:
    """A timer and what it starts, by file name."""
    return {
        f"pomona-{CLEAN}.timer": f"""\
[Unit]
Description={CLEAN_DESCRIPTION}

[Timer]
OnCalendar=daily
RandomizedDelaySec=1h
Persistent=true

[Install]
WantedBy=timers.target
""",
        f"pomona-{CLEAN}.service": f"""\
[Unit]
Description={CLEAN_DESCRIPTION}

[Service]
Type=oneshot
User={hosts.user}
WorkingDirectory={hosts.state}
ExecStart={script_path(CLEAN, hosts)}
Nice=19
UMask=0077
NoNewPrivileges=true
""",
    }
