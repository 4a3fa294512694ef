"""``python -m ops.load_balancer haproxy|nginx --hosts hosts.yaml`` prints a configuration, for the
gateways of a cluster's list of hosts, or for those named by ``--gateway HOST:PORT``."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import yaml

from deployments.settings import GatewaySettings, SettingsError, parse_settings
from ops.cluster.host_list import HostListError, read_host_list
from ops.cluster.serve_config import read_serve_config
from ops.cluster.watching import gateway_addresses
from ops.load_balancer.haproxy import haproxy
from ops.load_balancer.nginx import nginx
from ops.load_balancer.plan import ClientLimits, Plan, PlanError

BALANCERS = {"haproxy": haproxy, "nginx": nginx}
STATUS = {"haproxy": "127.0.0.1:8405", "nginx": "127.0.0.1:8406"}
ENGINES_ALONE = "deployments.app:build_engines"
DIRECTORY = {"haproxy": Path("/run/haproxy"), "nginx": Path("/var/log/nginx")}


def main(arguments: list[str]) -> int:
    parser = _parser()
    given = parser.parse_args(arguments)
    try:
        sys.stdout.write(BALANCERS[given.balancer](_plan(given)))
    except (PlanError, SettingsError, HostListError, OSError) as error:
        parser.error(str(error))
    return 0


def _plan(given: argparse.Namespace) -> Plan:
    gateways, config = given.gateway, given.config
    if given.hosts:
        hosts = read_host_list(given.hosts)
        gateways = gateway_addresses(hosts, read_serve_config(hosts.config))
        config = config or hosts.config
    default_listen = "0.0.0.0:443" if given.certificate else "0.0.0.0:80"
    return Plan(
        gateways=gateways,
        backups=given.backup,
        listen=given.listen or [default_listen],
        status=given.status or STATUS[given.balancer],
        directory=given.directory or DIRECTORY[given.balancer],
        certificate=given.certificate,
        redirect_from=given.redirect_from,
        user=given.user,
        limits=ClientLimits(given.requests_at_once, given.requests_per_second),
        settings=_settings(config) if config else GatewaySettings(),
    )


def _settings(path: Path) -> GatewaySettings:
    """Those of the one application with gateways in a Serve config. Raises ``SettingsError``."""
    try:
        config = yaml.safe_load(path.read_text())
    except yaml.YAMLError as error:
        raise SettingsError(f"{path}: not a Serve config: {error}") from error
    applications = config.get("applications") if isinstance(config, dict) else None
    found = [one for one in applications or () if one.get("import_path") != ENGINES_ALONE]
    if len(found) != 1:
        raise SettingsError(f"{path}: not a Serve config with one application of gateways")
    return parse_settings(found[0].get("args") or {}).gateway


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m ops.load_balancer", description=__doc__)
    add = parser.add_argument
    limits = ClientLimits()
    add("balancer", choices=sorted(BALANCERS))
    which = parser.add_mutually_exclusive_group(required=True)
    which.add_argument("--hosts", type=Path, help="a cluster's list, with its gateways and config")
    which.add_argument("--gateway", metavar="HOST:PORT", action="append", help="repeat for each")
    add(
        "--backup",
        metavar="HOST:PORT",
        action="append",
        default=[],
        help="a gateway to use only while no other is up, such as one on another machine",
    )
    add("--listen", metavar="HOST:PORT", action="append", help="for clients; 80 or 443 by default")
    add("--certificate", type=Path, help="PEM file with certificate, chain and key")
    add("--redirect-from", metavar="HOST:PORT", help="send plain HTTP from here to TLS")
    add("--status", metavar="HOST:PORT", help="the balancer's own metrics")
    add("--directory", type=Path, help="for HAProxy's admin socket or nginx's access log")
    add("--user", help="user and group to serve as; needs root at the start")
    add(
        "--config",
        type=Path,
        help="the Serve config of the gateways, for the largest body and the longest time",
    )
    for name, default in (
        ("--requests-at-once", limits.requests_at_once),
        ("--requests-per-second", limits.requests_per_second),
    ):
        add(name, type=int, default=default, help=f"of one client address; {default} by default")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
