"""Variables that Ray reads before any of this package is imported.

`serve run` works without them; they spare its users questions and surprises. `make serve` and the
service files take them from here: ``python -m deployments.environment`` prints them for a shell,
those of a cluster's host with the argument ``head`` or ``worker``.
"""

from __future__ import annotations

import argparse
import platform
import shlex
import sys
from typing import Literal

Role = Literal["alone", "head", "worker"]

EVERYWHERE = {
    # Only who holds the token may submit code. A single machine makes one on first use; a cluster
    # needs `ray get-auth-token --generate` once, and ~/.ray/auth_token on every host.
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Otherwise lines that differ only in numbers are shown once: most of the request log.
    "RAY_DEDUP_LOGS": "0",
}
MACOS = {
    # Without it Ray refuses workers on other Macs and calls this one 127.0.0.1.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
}
CLUSTER = {
    # Seconds that a host serves on without the head, which may be back by then.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
}
HEAD = {
    # A host that was declared dead ends all that it runs when it hears of it, so that takes three
    # minutes of silence. Gateways and Serve do without a lost engine long before.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "60",
}
OF_ROLE: dict[Role, dict[str, str]] = {"alone": {}, "head": CLUSTER | HEAD, "worker": CLUSTER}


def variables(system: str, role: Role = "alone") -> dict[str, str]:
    """For a host whose ``platform.system()`` is ``system``."""
    return EVERYWHERE | (MACOS if system == "Darwin" else {}) | OF_ROLE[role]


def main() -> None:
    parser = argparse.ArgumentParser(description="Prints what Ray needs in a shell's environment.")
    parser.add_argument("role", nargs="?", choices=OF_ROLE, default="alone")
    for name, value in variables(platform.system(), parser.parse_args().role).items():
        # What the user has set wins.
        sys.stdout.write(f'export {name}="${{{name}:-{shlex.quote(value)}}}"\n')


if __name__ == "__main__":
    main()
