"""What is in the folder of a host."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ops.cluster import launchd, systemd
from ops.cluster.credentials import (
    AUTH_TOKEN,
    STORE_CA,
    STORE_CLIENT,
    STORE_CLIENT_KEY,
    STORE_SERVER,
    STORE_SERVER_KEY,
)
from ops.cluster.files import PRIVATE, PROGRAM, GeneratedFile
from ops.cluster.heartbeat import (
    KEY_FILE,
    heartbeat_key,
    heartbeat_script,
    with_heartbeat_key,
)
from ops.cluster.host_environment import ENVIRONMENT, HEAD_ENVIRONMENT, environment_file
from ops.cluster.host_list import Host, HostList, runs_ray
from ops.cluster.installer import root_scripts
from ops.cluster.scripts import (
    DEPLOYED,
    clean_script,
    command_script,
    deploy_script,
    head_script,
    ray_script,
    store_config,
    store_script,
)
from ops.cluster.serve_config import ServeConfig
from ops.cluster.units import services


@dataclass(frozen=True)
class Cluster:
    """A host list with all that it refers to. ``api_keys`` is the file's content."""

    hosts: HostList
    config: ServeConfig
    credentials: Mapping[str, str]
    api_keys: str | None = None


def folder_of(host: Host, cluster: Cluster) -> dict[str, GeneratedFile]:
    """The files of ``host`` by name."""
    files = dict(_service_files(host, cluster))
    if "store" in host.roles:
        files |= _store_files(host, cluster)
    if runs_ray(host):
        files |= _ray_files(host, cluster)
    if host == cluster.hosts.head:
        files |= _head_files(cluster)
    if cluster.hosts.has_heartbeat(host):
        files |= _heartbeat_files(host, cluster)
    keys = cluster.hosts.api_keys
    if keys and cluster.api_keys and host in (cluster.hosts.head, *cluster.hosts.gateways):
        files[keys_name(keys)] = GeneratedFile(_keys(keys, cluster.api_keys, cluster), PRIVATE)
    return files


def keys_name(path: Path) -> str:
    """What a file of API keys is called on the hosts: its suffix says what is in it."""
    return f"api_keys{path.suffix}"


def _keys(path: Path, text: str, cluster: Cluster) -> str:
    if cluster.hosts.heartbeat is None:
        return text
    return with_heartbeat_key(path, text, heartbeat_key(cluster.credentials[AUTH_TOKEN]))


def _heartbeat_files(host: Host, cluster: Cluster) -> dict[str, GeneratedFile]:
    heartbeat, has_key = cluster.hosts.heartbeat, cluster.api_keys is not None
    assert heartbeat is not None
    models = cluster.config.models
    script = heartbeat_script(host, cluster.hosts, heartbeat, models, has_key=has_key)
    files = {"pomona-heartbeat": GeneratedFile(script, PROGRAM)}
    if has_key:
        key = heartbeat_key(cluster.credentials[AUTH_TOKEN])
        files[KEY_FILE] = GeneratedFile(key, PRIVATE)
    return files


def _service_files(host: Host, cluster: Cluster) -> Iterator[tuple[str, GeneratedFile]]:
    drain_timeout_s = cluster.config.drain_timeout_s(host in cluster.hosts.gateways)
    of_host = services(host, cluster.hosts, drain_timeout_s)
    units = launchd if host.system == "macos" else systemd
    for service in of_host:
        yield units.unit_name(service), GeneratedFile(units.unit(service, cluster.hosts))
    for name, text in units.clean_units(cluster.hosts).items():
        yield name, GeneratedFile(text)
    yield "pomona-clean", GeneratedFile(clean_script(cluster.hosts), PROGRAM)
    environment = environment_file(host, cluster.hosts, drain_timeout_s, "worker")
    yield ENVIRONMENT, GeneratedFile(environment, PRIVATE)
    for name, script in root_scripts(host, cluster.hosts, of_host).items():
        yield name, GeneratedFile(script, PROGRAM)


def _ray_files(host: Host, cluster: Cluster) -> dict[str, GeneratedFile]:
    files = {
        AUTH_TOKEN: GeneratedFile(cluster.credentials[AUTH_TOKEN], PRIVATE),
        "pomona": GeneratedFile(command_script(cluster.hosts), PROGRAM),
    }
    if cluster.hosts.serves(host):
        files["pomona-ray"] = GeneratedFile(ray_script(host, cluster.hosts), PROGRAM)
    return files


def _head_files(cluster: Cluster) -> dict[str, GeneratedFile]:
    hosts = cluster.hosts
    environment = environment_file(hosts.head, hosts, 0, "head")
    files = {
        HEAD_ENVIRONMENT: GeneratedFile(environment, PRIVATE),
        "pomona-head": GeneratedFile(head_script(hosts), PROGRAM),
        DEPLOYED: GeneratedFile(cluster.config.text),
        "pomona-deploy": GeneratedFile(deploy_script(hosts), PROGRAM),
    }
    if hosts.store is not None:
        files |= _credentials(cluster, STORE_CA, STORE_CLIENT, STORE_CLIENT_KEY)
    return files


def _store_files(host: Host, cluster: Cluster) -> dict[str, GeneratedFile]:
    return {
        "pomona-store": GeneratedFile(store_script(), PROGRAM),
        "redis.conf": GeneratedFile(store_config(host, cluster.hosts)),
        **_credentials(cluster, STORE_CA, STORE_SERVER, STORE_SERVER_KEY),
    }


def _credentials(cluster: Cluster, *names: str) -> dict[str, GeneratedFile]:
    return {name: GeneratedFile(cluster.credentials[name], PRIVATE) for name in names}
