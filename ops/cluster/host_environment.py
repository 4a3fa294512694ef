"""The environment files of a host: what Ray and the programs here read before they start."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from deployments.environment import Role, variables
from ops.cluster.credentials import STORE_CA, STORE_CLIENT, STORE_CLIENT_KEY
from ops.cluster.host_list import Host, HostList, runs_ray

# Where Homebrew puts redis-server; launchd looks in neither.
MACOS_PATH = "/opt/homebrew/bin:/usr/local/bin:"

# With a store the cluster can wait this long for its head.
HEAD_ABSENCE_S = 24 * 3600


ENVIRONMENT, HEAD_ENVIRONMENT = "environment", "head_environment"
"""Names of the files: every host's, and the one that the head itself reads."""


def environment_file(host: Host, hosts: HostList, drain_timeout_s: int, role: Role) -> str:
    """Shell text, for scripts that have set ``here`` to their folder."""
    lines = [
        "# Sourced by the scripts beside it. May hold secrets: for its owner alone.",
        'export HOME="${HOME:-$(eval echo "~$(id -un)")}"',
        f'export PATH="{hosts.package}/.venv/bin:{_system_path(host)}$PATH"',
        f"state={hosts.state}",
    ]
    if runs_ray(host):
        lines += _exports(variables(role) | dict(_of_cluster(hosts, drain_timeout_s, role)))
        lines += _files(hosts, role)
    return "\n".join([*lines, *_exports(hosts.environment)]) + "\n"


def _system_path(host: Host) -> str:
    return MACOS_PATH if host.system == "macos" else ""


def _of_cluster(hosts: HostList, drain_timeout_s: int, role: Role) -> Iterator[tuple[str, str]]:
    # The controller never leaves the head, so waiting for it to would be in vain.
    yield "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0" if role == "head" else str(drain_timeout_s)
    if hosts.store is None:
        return
    if role == "head":
        yield "RAY_REDIS_ADDRESS", f"rediss://{hosts.store.address}:{hosts.store_port}"
    else:
        yield "RAY_gcs_rpc_server_reconnect_timeout_s", str(HEAD_ABSENCE_S)


def _files(hosts: HostList, role: Role) -> Iterator[str]:
    names = {"RAY_AUTH_TOKEN_PATH": "auth_token"}
    if hosts.store is not None and role == "head":
        names |= {
            "RAY_REDIS_CA_CERT": STORE_CA,
            "RAY_REDIS_CLIENT_CERT": STORE_CLIENT,
            "RAY_REDIS_CLIENT_KEY": STORE_CLIENT_KEY,
        }
    return (f'export {variable}="$here/{name}"' for variable, name in names.items())


def _exports(values: dict[str, str]) -> Iterator[str]:
    return (f"export {name}={shlex.quote(value)}" for name, value in values.items())
