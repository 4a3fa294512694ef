"""``python -m ops.cluster hosts.yaml OUT/`` writes a folder for each host of the list.

Secrets are made once, in ``OUT/secrets``, and kept: a second run changes only what the list does.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from deployments.keys_file import read_keys_file
from deployments.settings import SettingsError
from ops.cluster.credentials import keep_credentials
from ops.cluster.files import write_folder
from ops.cluster.host_list import SECRETS, HostListError, read_host_list
from ops.cluster.layout import Cluster, folder_of, keys_name
from ops.cluster.serve_config import ServeConfig, read_serve_config


def generate(host_list: Path, out: Path) -> tuple[str, ...]:
    """Names of the hosts whose folders changed. Raises ``HostListError``."""
    cluster = read_cluster(host_list, out / SECRETS)
    return tuple(
        host.name
        for host in cluster.hosts.hosts
        if write_folder(out / host.name, folder_of(host, cluster))
    )


def read_cluster(host_list: Path, secrets: Path) -> Cluster:
    """Makes those ``secrets`` that are missing. Raises ``HostListError``."""
    hosts = read_host_list(host_list)
    config = read_serve_config(hosts.config)
    keys = _api_keys(hosts.api_keys, config) if hosts.api_keys else None
    return Cluster(hosts, config, keep_credentials(secrets), keys)


def _api_keys(path: Path, config: ServeConfig) -> str:
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
    parser.add_argument("out", type=Path, help="folder for the hosts' folders and the secrets")
    options = parser.parse_args(arguments)
    try:
        changed = generate(options.hosts, options.out)
    except HostListError as error:
        sys.stderr.write(f"{error}\n")
        return 2
    sys.stdout.write(f"changed: {', '.join(changed) or 'nothing'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
