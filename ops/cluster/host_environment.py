"""The environment file of a host: what Ray and the programs here read before they start."""

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


def environment_file(host: Host, hosts: HostList, drain_timeout_s: int) -> str:
    """Shell text, for scripts that have set ``here`` to their folder."""
    lines = [
        "# Sourced by the scripts beside it. May hold secrets: for its owner alone.",
        'export HOME="${HOME:-$(eval echo "~$(id -un)")}"',
        f'export PATH="{hosts.package}/.venv/bin:{_system_path(host)}$PATH"',
        f"state={hosts.state}",
    ]
    if runs_ray(host):
        role: Role = "head" if host == hosts.head else "worker"
        common = variables(role)
        lines += _exports(common | dict(_of_cluster(host, hosts, drain_timeout_s)))
        lines += _files(host, hosts)
    return "\n".join([*lines, *_exports(hosts.environment)]) + "\n"


def _system_path(host: Host) -> str:
    return MACOS_PATH if host.system == "macos" else ""


def _of_cluster(host: Host, hosts: HostList, drain_timeout_s: int) -> Iterator[tuple[str, str]]:
    is_head = host == hosts.head
    # The controller never leaves the head, so waiting for it to would be in vain.
    yield "RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S", "0" if is_head else str(drain_timeout_s)
    if hosts.store is None:
        return
    yield "RAY_gcs_rpc_server_reconnect_timeout_s", str(HEAD_ABSENCE_S)
    if is_head:
        yield "RAY_REDIS_ADDRESS", f"rediss://{hosts.store.address}:{hosts.store_port}"


def _files(host: Host, hosts: HostList) -> Iterator[str]:
    names = {"RAY_AUTH_TOKEN_PATH": "auth_token"}
    if hosts.store is not None and host == hosts.head:
        names |= {
            "RAY_REDIS_CA_CERT": STORE_CA,
            "RAY_REDIS_CLIENT_CERT": STORE_CLIENT,
            "RAY_REDIS_CLIENT_KEY": STORE_CLIENT_KEY,
        }
    return (f'export {variable}="$here/{name}"' for variable, name in names.items())


def _exports(values: dict[str, str]) -> Iterator[str]:
    return (f"export {name}={shlex.quote(value)}" for name, value in values.items())
