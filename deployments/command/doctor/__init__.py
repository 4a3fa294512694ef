"""``pomona doctor``: what goes wrong at a first start, each thing checked, with a remedy.

``local.py`` has every check of this machine, ``cluster.py`` those of a cluster. What reads
(``readings.py``, ``engine_reading.py``, ``remote.py``, ``gateways.py``) is apart from what judges:
all else are functions of what was read, and give findings (``finding.py``).
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from deployments.command.doctor.cluster import check_cluster, read_cluster
from deployments.command.doctor.config import read_config
from deployments.command.doctor.finding import Finding
from deployments.command.doctor.host_list import read_host_list
from deployments.command.doctor.local import RAYS_PORTS, SERVICES, Asked, check_here
from deployments.command.doctor.report import as_json, line, summary
from deployments.command.serve import DEFAULT_CONFIG
from deployments.command.terminal import Parser, fail
from deployments.observe.versions import versions

ROLES = ("head", "engine", "gateway", "store")
EXAMPLES = """
examples:
  pomona doctor                                    this machine, for 'pomona serve'
  pomona doctor mlx-community/Qwen3-0.6B-4bit      for that model
  pomona doctor --cluster ~/cluster/hosts.yaml     every host of a cluster, from your own machine

Nothing is changed and nothing is downloaded. With --cluster each host's own doctor is asked over
ssh, as ops/runbook.md has you reach them, and each gateway over HTTP.

Exit status: 0 if nothing is wrong, 1 if something is, 2 for a mistake in the command or its files.
"""


def run(arguments: list[str]) -> int:
    options = _parser().parse_args(arguments)
    try:
        found = _findings(options)
        findings = []
        for one in found:
            findings.append(one)
            if not options.json:
                print(line(one), flush=True)
    except ValueError as error:
        return fail(str(error), status=2)
    if options.json:
        print(as_json(findings, versions()))
    else:
        print(f"\n{summary(findings)}")
    return 1 if any(one.verdict == "wrong" for one in findings) else 0


def _findings(options: argparse.Namespace) -> Iterator[Finding]:
    """Raises ``ValueError`` for a file that is wrong."""
    if options.cluster is not None:
        hosts = read_host_list(options.cluster)
        config = read_config(hosts.config)
        if not options.json:
            print(f"Asking {len(hosts.hosts)} hosts.", file=sys.stderr)
        reading = read_cluster(
            hosts,
            hosts.config.read_text(encoding="utf-8"),
            config.settings.gateway.port,
            with_ssh=options.ssh,
        )
        return check_cluster(hosts, reading)
    roles: tuple[str, ...] = options.roles
    return check_here(
        Asked(
            read_config(options.config, options.model),
            rays_ports=options.ray_ports,
            services=options.services,
            unattended=options.unattended,
            has_engine="engine" in roles,
            has_gateway="gateway" in roles,
        )
    )


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="pomona doctor",
        description="Checks what goes wrong at a first start, a line each, with a remedy.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "model",
        nargs="?",
        metavar="MODEL",
        help="what is to be served (default: the config's, which is the embedded 'demo')",
    )
    parser.add_argument(
        "--config",
        type=Path,
        default=DEFAULT_CONFIG,
        metavar="FILE",
        help="the Serve config that is to be served (default: the built-in one)",
    )
    parser.add_argument(
        "--cluster",
        type=Path,
        metavar="HOSTS",
        help="check the hosts of this list instead, as ops.cluster has it",
    )
    parser.add_argument(
        "--no-ssh",
        dest="ssh",
        action="store_false",
        help="with --cluster: ask gateways alone, over HTTP",
    )
    parser.add_argument("--json", action="store_true", help="print JSON")
    parser.add_argument(
        "--unattended",
        action="store_true",
        help="this is a server: it never sleeps, and starts without anybody before it",
    )
    of_host = parser.add_argument_group("of a cluster's host", "what --cluster asks each one with")
    of_host.add_argument(
        "--roles",
        type=_roles,
        default=ROLES,
        metavar="A,B,...",
        help=f"some of {', '.join(ROLES)} (default: all)",
    )
    of_host.add_argument(
        "--ray-ports",
        type=_ports,
        default=RAYS_PORTS,
        metavar="N,N,...",
        help=f"that Ray is to have (default: {','.join(map(str, RAYS_PORTS))})",
    )
    of_host.add_argument(
        "--services",
        type=Path,
        default=SERVICES,
        metavar="FOLDER",
        help=f"with the cluster's secrets (default: {SERVICES})",
    )
    return parser


def _roles(text: str) -> tuple[str, ...]:
    roles = tuple(text.split(","))
    if unknown := set(roles) - set(ROLES):
        raise argparse.ArgumentTypeError(
            f"roles are some of {', '.join(ROLES)}, not {', '.join(sorted(unknown))}"
        )
    return roles


def _ports(text: str) -> tuple[int, ...]:
    ports = [one for one in text.split(",") if one]
    if not all(one.isdecimal() and 1 <= int(one) <= 65535 for one in ports):
        raise argparse.ArgumentTypeError(f"ports are 1 to 65535, not {text!r}")
    return tuple(map(int, ports))
