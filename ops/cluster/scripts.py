"""The shell scripts that units run, each one host's own."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from ops.cluster.credentials import STORE_CA, STORE_SERVER, STORE_SERVER_KEY
from ops.cluster.host_list import Host, HostList

DEPLOYED = "cluster.yaml"
# Tokens pass outside Ray's object store; what is left is small.
OBJECT_STORE_BYTES = 256 * 1024 * 1024
RESOURCES = {"engine": "mlx", "gateway": "gateway"}

BESIDE_HEAD = """\
# By this a head that was killed would keep its successor from starting.
rm -f "$state/ray/ray_current_cluster"
# Without a store a new head knows of no application. With one this changes nothing.
"$here/pomona-deploy" &
"""
BESIDE_HEAD_WITH_STORE = """\
python -m ops.cluster.isolation wait "$state/isolated"
python -m ops.cluster.isolation watch "$state/isolated" {address} &
"""
START = """\
#!/bin/sh
# {purpose}
set -eu
umask 077
here=$(cd "$(dirname "$0")" && pwd)
. "$here/environment"
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


def ray_script(host: Host, hosts: HostList) -> str:
    beside = BESIDE_HEAD if host == hosts.head else ""
    if beside and hosts.store is not None:
        # Without one, a head that ends forgets everything.
        beside += BESIDE_HEAD_WITH_STORE.format(address=_head_address(hosts))
    command = " \\\n    ".join(["exec ray start --block", *_ray_arguments(host, hosts)])
    start = START.format(purpose="Runs Ray on this host until it ends; a unit starts it again.")
    return f'{start}\nmkdir -p "$state/ray"\n{beside}{command}\n'


def deploy_script(hosts: HostList) -> str:
    roles = [role for role in RESOURCES if hosts.with_role(role)]
    return START.format(purpose=f"Deploys {DEPLOYED}; one that runs already stays as it is.") + (
        DEPLOY.format(
            engines=" --engines" if "engine" in hosts.head.roles else "",
            address=_head_address(hosts),
            resources=" ".join(RESOURCES[role] for role in roles),
            dashboard_port=hosts.dashboard_port,
            deployed=DEPLOYED,
        )
    )


def command_script(hosts: HostList) -> str:
    return (
        START.format(purpose="Runs a command as the cluster's own: pomona serve status")
        + f"export RAY_ADDRESS={_head_address(hosts)}\n"
        + f"export RAY_DASHBOARD_ADDRESS=http://127.0.0.1:{hosts.dashboard_port}\n"
        + 'exec "$@"\n'
    )


def clean_script(hosts: HostList) -> str:
    return (
        START.format(purpose="Removes logs of ended processes, and shortens what grows.")
        + f'exec python -m ops.cluster.clean "$state" {hosts.keep_logs_days}\n'
    )


def store_script() -> str:
    return (
        START.format(purpose="Runs the store, Redis, until it ends; a unit starts it again.")
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


def _ray_arguments(host: Host, hosts: HostList) -> Iterator[str]:
    if host == hosts.head:
        yield "--head"
        yield f"--port={hosts.ray_port}"
        yield f"--dashboard-port={hosts.dashboard_port}"
    else:
        yield f"--address={_head_address(hosts)}"
    yield f"--node-ip-address={host.address}"
    yield f"--node-name={host.name}"
    resources = {RESOURCES[role]: 1 for role in host.roles if role in RESOURCES}
    if resources:
        yield f"--resources={shlex.quote(json.dumps(resources))}"
    if host.num_cpus is not None:
        yield f"--num-cpus={host.num_cpus}"
    yield f"--object-store-memory={OBJECT_STORE_BYTES}"
    yield '--temp-dir="$state/ray"'
    yield f"--ray-client-server-port={hosts.client_port}"
    yield f"--dashboard-agent-listen-port={hosts.agent_port}"
    yield f"--metrics-export-port={hosts.metrics_port}"
    yield "--disable-usage-stats"
    yield "--log-style=record --log-color=false"


def _head_address(hosts: HostList) -> str:
    return f"{hosts.head.address}:{hosts.ray_port}"
