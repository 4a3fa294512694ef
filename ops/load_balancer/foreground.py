"""A balancer in the foreground, as whoever asks for it: for benchmarks and tests."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from ops.load_balancer.haproxy import haproxy
from ops.load_balancer.nginx import nginx
from ops.load_balancer.plan import Plan


def write(kind: str, plan: Plan) -> Path:
    """The balancer's configuration file."""
    path = plan.directory / f"{kind}.conf"
    if kind == "haproxy":
        path.write_text(haproxy(plan))
    else:
        path.write_text(_without_root(nginx(plan), plan.directory))
    return path


def _without_root(text: str, directory: Path) -> str:
    """Debian's nginx would keep temporary files in places that only root can write."""
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {directory}/{kind};\n" for kind in kinds)
    return text.replace("http {\n", f"http {{\n{paths}", 1)


def command(kind: str, plan: Plan, *extra: str) -> list[str]:
    """How the balancer is started, with its configuration written."""
    path = str(write(kind, plan))
    if kind == "haproxy":
        return ["haproxy", "-W", "-db", "-f", path, *extra]
    directives = f"daemon off; pid {plan.directory}/nginx.pid;"
    if os.geteuid() == 0:
        # Nobody else may enter a temporary folder.
        directives += " user root;"
    return ["nginx", "-e", "stderr", "-g", directives, "-c", path, *extra]


def start(kind: str, plan: Plan, log: Path) -> subprocess.Popen[bytes]:
    with log.open("wb") as out:
        return subprocess.Popen(command(kind, plan), stdout=out, stderr=out)
