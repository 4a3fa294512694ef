"""Variables that Ray reads before any of this package is imported.

`serve run` works without them; they spare its users questions and surprises, and keep Ray to this
user and, on a single machine, to loopback. `make serve` and the service files take them from here.
``eval "$(python -m deployments.environment)"`` readies a shell, of a cluster's host with the
argument ``head`` or ``worker``.
"""

from __future__ import annotations

import argparse
import shlex
import sys
from typing import Literal

from deployments.launch.private_files import keep_private, ray_folder

NO_PROXY = ("no_proxy", "NO_PROXY")
"""Variables that list the hosts to be asked without a proxy."""
LOOPBACK = "127.0.0.1,localhost,::1"
Role = Literal["alone", "head", "worker"]

EVERYWHERE = {
    # Only who holds the token may submit code. A single machine makes one on first use; a cluster
    # needs `ray get-auth-token --generate` once, and ~/.ray/auth_token on every host.
    "RAY_AUTH_MODE": "token",
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray has workers, all that serves here, give way to everything else on a machine (nice 15).
    "RAY_worker_niceness": "0",
    # Ray's own connections never leave the cluster.
    "grpc_proxy": "",
    # Otherwise lines that differ only in numbers are shown once: most of the request log.
    "RAY_DEDUP_LOGS": "0",
}
ALONE = {
    # Ray calls the machine 127.0.0.1, on Linux, too, and all of its ports are open there alone.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
CLUSTER = {
    # Without it Ray refuses workers on other Macs.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "1",
    # Linux ends a connection of a server whose answer is not acknowledged for so long, and Serve
    # takes a replica whose connection has ended for one that crashed. As long as for a host, below.
    "RAY_grpc_keepalive_timeout_ms": "180000",
}
WORKER = {
    # Seconds that a host serves on without the head, which may be back by then. The head itself
    # would wait so long for a GCS whose store takes no writes, and start nothing meanwhile.
    "RAY_gcs_rpc_server_reconnect_timeout_s": "600",
}
HEAD = {
    # A host that was declared dead ends all that it runs when it hears of it, so that takes three
    # minutes of silence. Gateways and Serve do without a lost engine long before.
    "RAY_health_check_period_ms": "1000",
    "RAY_health_check_timeout_ms": "2000",
    "RAY_health_check_failure_threshold": "60",
}
OF_ROLE: dict[Role, dict[str, str]] = {
    "alone": ALONE,
    "head": CLUSTER | HEAD,
    "worker": CLUSTER | WORKER,
}


def variables(role: Role = "alone") -> dict[str, str]:
    """For every process of Ray on a host."""
    return EVERYWHERE | OF_ROLE[role]


def main() -> int:
    parser = argparse.ArgumentParser(description="Prints what Ray needs in a shell's environment.")
    parser.add_argument("role", nargs="?", choices=OF_ROLE, default="alone")
    role = parser.parse_args().role
    folder = ray_folder()
    try:
        keep_private(folder)
    except OSError as error:
        sys.stderr.write(f"pomona: {error}\n")
        # What evaluates this fails, too.
        sys.stdout.write("false\n")
        return 1
    quoted = shlex.quote(str(folder))
    sys.stdout.write(f"umask 077\nexport RAY_TMPDIR={quoted} TMPDIR={quoted}\n")
    for name in NO_PROXY:
        sys.stdout.write(f'export {name}="{LOOPBACK}${{{name}:+,${name}}}"\n')
    for name, value in variables(role).items():
        # What the user has set wins.
        sys.stdout.write(f'export {name}="${{{name}:-{shlex.quote(value)}}}"\n')
    return 0


if __name__ == "__main__":
    sys.exit(main())
