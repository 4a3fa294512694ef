"""``python -m ops.cluster hosts.yaml OUT/`` writes a folder for each host, and one for Prometheus.

The secrets in ``OUT/secrets`` are made for a new cluster and kept: a second run changes only what
the list does.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Collection
from pathlib import Path

from deployments.gateway.access.keys_file import read_keys_file
from deployments.settings import SettingsError
from ops.cluster.credentials import (
    KINDS,
    CredentialsError,
    keep_credentials,
    refuse_credentials,
)
from ops.cluster.files import write_folder
from ops.cluster.host_list import PROMETHEUS, SECRETS, HostListError, read_host_list
from ops.cluster.layout import Cluster, folder_of, keys_name
from ops.cluster.serve_config import ServeConfig, read_serve_config
from ops.cluster.watching import prometheus_files


def generate(host_list: Path, out: Path, make: Collection[str] = ()) -> tuple[str, ...]:
    """Names of the folders that changed, hosts' and Prometheus', with new secrets of the kinds in
    ``make``. Raises ``HostListError`` and ``CredentialsError``.
    """
    cluster = read_cluster(host_list, out / SECRETS, make)
    folders = {host.name: folder_of(host, cluster) for host in cluster.hosts.hosts}
    folders[PROMETHEUS] = prometheus_files(cluster.hosts, cluster.config, cluster.credentials)
    return tuple(name for name, files in folders.items() if write_folder(out / name, files))


def read_cluster(host_list: Path, secrets: Path, make: Collection[str] = ()) -> Cluster:
    """Like ``generate``."""
    hosts = read_host_list(host_list)
    config = read_serve_config(hosts.config)
    keys = _api_keys(hosts.api_keys, config)
    return Cluster(hosts, config, keep_credentials(secrets, make), keys)


def _api_keys(path: Path | None, config: ServeConfig) -> str | None:
    if path is None:
        wanted = ", ".join(map(str, config.api_keys_files))
        if not wanted:
            return None
        raise HostListError(
            f"api_keys: gateway.api_keys_file is {wanted}, and no gateway starts without it. "
            "Name a file here that has a key a line, and mode 600."
        )
    installed = Path("~/.pomona") / keys_name(path)
    if config.api_keys_files != {installed}:
        told = ", ".join(map(str, config.api_keys_files)) or "nothing"
        raise HostListError(f"api_keys: gateway.api_keys_file must be {installed}, not {told}")
    try:
        read_keys_file(path)
    except SettingsError as error:
        raise HostListError(f"api_keys: {error}") from None
    return path.read_text(encoding="utf-8")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m ops.cluster", description=__doc__)
    parser.add_argument(
        "hosts", type=Path, help="the host list, like ops/cluster/hosts.example.yaml"
    )
    parser.add_argument(
        "out", type=Path, help="folder for the hosts' folders, Prometheus' and the secrets"
    )
    secrets = parser.add_mutually_exclusive_group()
    secrets.add_argument(
        "--new-cluster", action="store_true", help="make the secrets, of which there are none yet"
    )
    secrets.add_argument("--rotate", choices=KINDS, help="make new secrets of one kind")
    options = parser.parse_args(arguments)
    make = KINDS if options.new_cluster else filter(None, [options.rotate])
    try:
        if options.new_cluster:
            refuse_credentials(options.out / SECRETS)
        changed = generate(options.hosts, options.out, tuple(make))
    except (HostListError, CredentialsError) as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"changed: {', '.join(changed) or 'nothing'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
