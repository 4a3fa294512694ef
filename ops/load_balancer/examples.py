"""The two files that are shipped, and what they are made from."""

from __future__ import annotations

from pathlib import Path

from ops.load_balancer.haproxy import haproxy
from ops.load_balancer.nginx import nginx
from ops.load_balancer.plan import Plan

DIRECTORY = Path(__file__).parent
GATEWAYS = ("10.0.0.1:8000", "10.0.0.2:8000")
CERTIFICATE = Path("/etc/pomona/tls.pem")


def examples() -> dict[Path, str]:
    """Path to text, with directories and users as Debian's packages have them."""
    return {
        DIRECTORY / "haproxy.cfg": haproxy(_plan("127.0.0.1:8405", "/run/haproxy", "haproxy")),
        DIRECTORY / "nginx.conf": nginx(_plan("127.0.0.1:8406", "/var/log/nginx", "www-data")),
    }


def _plan(status: str, directory: str, user: str) -> Plan:
    return Plan(
        gateways=GATEWAYS,
        listen=["0.0.0.0:443"],
        status=status,
        directory=Path(directory),
        certificate=CERTIFICATE,
        redirect_from="0.0.0.0:80",
        user=user,
    )


if __name__ == "__main__":
    for path, text in examples().items():
        path.write_text(text)
