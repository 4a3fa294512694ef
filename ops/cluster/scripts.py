"""The shell scripts that units run, each one host's own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from ops.cluster.credentials import STORE_CA, STORE_SERVER, STORE_SERVER_KEY
from ops.cluster.host_environment import ENVIRONMENT, HEAD_ENVIRONMENT
from ops.cluster.host_list import Host, HostList

DEPLOYED = "cluster.yaml"
# Tokens pass outside Ray's object store; what is left is small.
OBJECT_STORE_BYTES = 256 * 1024 * 1024
RESOURCES = {"engine": "mlx", "gateway": "gateway"}
# Two raylets of one host name their sockets and logs alike: each has a folder. It is short, since
# sockets are in it.
HEAD_FOLDER, ROLES_FOLDER = "gcs", "ray"
# The head's raylet takes those below, by Ray's default.
WORKER_PORTS = "--min-worker-port=20000 --max-worker-port=29999"

BESIDE_HEAD = """\
# By this a head that was killed would keep its successor from starting.
rm -f "$state/gcs/ray_current_cluster"
# Without a store a new head knows of no application. With one this changes nothing.
"$here/pomona-deploy" &
"""
BESIDE_HEAD_WITH_STORE = """\
python -m ops.cluster.isolation wait "$state/isolated"
python -m ops.cluster.isolation watch "$state/isolated" {address}{store} &
"""
START = """\
#!/bin/sh
# {purpose}
set -eu
umask 077
here=$(cd "$(dirname "$0")" && pwd)
. "$here/{environment}"
"""
DEPLOY = """\

# Serve would try for minutes to start what can't.
python -m ops.cluster.config_check{engines} "$here/{deployed}"

# Ends with whoever started it.
attempt() {{
    until "$@"; do
        ps -p "$PPID" >/dev/null || exit 1
        sleep 2
    done
}}

joined() {{
    ray status --address={address} 2>/dev/null | grep -q "/[0-9.]* $1\\$"
}}

# What is deployed is laid out for the resources that there are: some of each come first.
for resource in {resources}; do
    attempt joined "$resource"
done
attempt serve deploy --address=http://127.0.0.1:{dashboard_port} "$here/{deployed}"
"""


def beginning(purpose: str, environment: str = ENVIRONMENT) -> str:
    return START.format(purpose=purpose, environment=environment)


def head_script(hosts: HostList) -> str:
    beside = BESIDE_HEAD
    if hosts.store is not None:
        # Without one, a head that ends forgets everything.
        beside += BESIDE_HEAD_WITH_STORE.format(
            address=_head_address(hosts), store=_store_elsewhere(hosts)
        )
    start = beginning("Runs Ray's head until it ends; a unit starts it again.", HEAD_ENVIRONMENT)
    return start + _ray_start(HEAD_FOLDER, beside, _head_arguments(hosts))


def ray_script(host: Host, hosts: HostList) -> str:
    """For what the host serves, whether or not it is the head's."""
    start = beginning("Runs Ray on this host until it ends; a unit starts it again.")
    return start + _ray_start(ROLES_FOLDER, "", _ray_arguments(host, hosts))


def _ray_start(folder: str, beside: str, arguments: Iterator[str]) -> str:
    command = " \\\n    ".join(["exec ray start --block", *arguments])
    return f'\nmkdir -p "$state/{folder}"\n{beside}{command} --temp-dir="$state/{folder}"\n'


def deploy_script(hosts: HostList) -> str:
    return beginning(f"Deploys {DEPLOYED}; one that runs already stays as it is.") + (
        DEPLOY.format(
            engines=" --engines" if "engine" in hosts.head.roles else "",
            address=_head_address(hosts),
            resources=" ".join(RESOURCES.values()),
            dashboard_port=hosts.dashboard_port,
            deployed=DEPLOYED,
        )
    )


def command_script(hosts: HostList) -> str:
    return (
        beginning("Runs a command as the cluster's own: pomona serve status")
        + f"export RAY_ADDRESS={_head_address(hosts)}\n"
        + f"export RAY_DASHBOARD_ADDRESS=http://127.0.0.1:{hosts.dashboard_port}\n"
        + 'exec "$@"\n'
    )


def clean_script(hosts: HostList) -> str:
    return (
        beginning("Removes logs of ended processes, and shortens what grows.")
        + f'exec python -m ops.cluster.clean "$state" {hosts.keep_logs_days}\n'
    )


def store_script() -> str:
    return (
        beginning("Runs the store, Redis, until it ends; a unit starts it again.")
        + '\nmkdir -p "$state/store"\n'
        + 'exec redis-server "$here/redis.conf" --dir "$state/store" \\\n'
        + f'    --tls-ca-cert-file "$here/{STORE_CA}" \\\n'
        + f'    --tls-cert-file "$here/{STORE_SERVER}" \\\n'
        + f'    --tls-key-file "$here/{STORE_SERVER_KEY}"\n'
    )


def store_config(host: Host, hosts: HostList) -> str:
    return f"""\
bind {host.address}
port 0
tls-port {hosts.store_port}
# Only who has a certificate gets in, which is more than the password that this mode asks for.
tls-auth-clients yes
protected-mode no
appendonly yes
"""


def _head_arguments(hosts: HostList) -> Iterator[str]:
    yield "--head"
    yield f"--port={hosts.ray_port}"
    yield f"--dashboard-port={hosts.dashboard_port}"
    # What engines and gateways need is in the other roles' Ray.
    yield "--num-cpus=0"
    yield f"--ray-client-server-port={hosts.client_port}"
    yield from _common_arguments(hosts.head, hosts.head_agent_port, hosts.head_metrics_port)


def _ray_arguments(host: Host, hosts: HostList) -> Iterator[str]:
    yield f"--address={_head_address(hosts)}"
    offered = {
        RESOURCES["engine"]: "engine" in host.roles,
        # On every host or on some, never on the head's raylet.
        RESOURCES["gateway"]: host in hosts.gateways,
    }
    resources = {name: 1 for name, is_offered in offered.items() if is_offered}
    yield f"--resources={shlex.quote(json.dumps(resources))}"
    if host.num_cpus is not None:
        yield f"--num-cpus={host.num_cpus}"
    if host == hosts.head:
        yield WORKER_PORTS
    yield from _common_arguments(host, hosts.agent_port, hosts.metrics_port)


def _common_arguments(host: Host, agent_port: int, metrics_port: int) -> Iterator[str]:
    yield f"--node-ip-address={host.address}"
    yield f"--node-name={host.name}"
    yield f"--object-store-memory={OBJECT_STORE_BYTES}"
    yield f"--dashboard-agent-listen-port={agent_port}"
    yield f"--metrics-export-port={metrics_port}"
    yield "--disable-usage-stats"
    yield "--log-style=record --log-color=false"


def _store_elsewhere(hosts: HostList) -> str:
    """What the watchdog of isolation is told of the store: on the head's own host, nothing."""
    if hosts.store is None or hosts.store == hosts.head:
        return ""
    return f" --store {hosts.store.address}:{hosts.store_port}"


def _head_address(hosts: HostList) -> str:
    return f"{hosts.head.address}:{hosts.ray_port}"
