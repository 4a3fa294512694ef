"""What a load balancer's configuration is made from, whichever balancer it is for."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from deployments.gateway.access.authentication import PAGE_FILES, PAGE_PATH
from deployments.gateway.access.limits_middleware import LIMITED_PATHS
from deployments.gateway.openapi import OPENAPI_PATH
from deployments.settings import GatewaySettings

PORTS = range(1, 65536)
_ADDRESS = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+):([0-9]{1,5})")
# What needs no quoting in either balancer's language.
_PATH = re.compile(r"/[A-Za-z0-9._/-]+")
_USER = re.compile(r"[A-Za-z_][A-Za-z0-9_-]*")


class PlanError(ValueError):
    """Something that no configuration can be made from."""


@dataclass(frozen=True)
class ClientLimits:
    """For one client address, against floods; fair shares are a matter of API keys."""

    requests_at_once: int = 512
    """Streams count until they end."""
    requests_per_second: int = 100
    """On average; ten seconds' worth may come in one go."""

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if value < 1:
                raise PlanError(f"{name} must be at least 1, not {value}")


@dataclass(frozen=True)
class Plan:
    """Addresses are HOST:PORT, an IPv6 host in brackets. Raises ``PlanError``."""

    gateways: Sequence[str]
    listen: Sequence[str]
    status: str
    """Where the balancer tells of itself: an address of this machine alone."""
    directory: Path
    """For what the balancer itself writes: HAProxy's admin socket, nginx's access log."""
    backups: Sequence[str] = ()
    """Gateways that get requests only while none of ``gateways`` is up."""
    certificate: Path | None = None
    """PEM with certificate, chain and key. None: plain HTTP."""
    redirect_from: str | None = None
    """Where plain HTTP is told to come back with TLS."""
    user: str | None = None
    """User and group of the processes that serve; None: whoever starts the balancer."""
    limits: ClientLimits = ClientLimits()
    settings: GatewaySettings = field(default_factory=GatewaySettings)
    """The gateways' own, for the longest time and the largest body that they allow."""

    def __post_init__(self) -> None:
        for name in ("gateways", "listen"):
            if not getattr(self, name):
                raise PlanError(f"{name} must name at least one HOST:PORT")
        addresses = {
            "gateway": self.gateways,
            "backup": self.backups,
            "listen": self.listen,
            "status": [self.status],
            "redirect_from": [self.redirect_from] if self.redirect_from else [],
        }
        for name, values in addresses.items():
            for value in values:
                _check_address(name, value)
        if repeated := {one for one in self.all_gateways if self.all_gateways.count(one) > 1}:
            raise PlanError(f"gateway {sorted(repeated)[0]} is named more than once")
        _check(_PATH, "directory", str(self.directory), "an absolute path of plain characters")
        if self.certificate is not None:
            path = str(self.certificate)
            _check(_PATH, "certificate", path, "an absolute path of plain characters")
        elif self.redirect_from:
            raise PlanError("redirect_from needs a certificate to redirect to")
        if self.user is not None:
            _check(_USER, "user", self.user, "a user's name")

    @property
    def all_gateways(self) -> list[str]:
        return [*self.gateways, *self.backups]

    @property
    def public_paths(self) -> list[str]:
        """What clients may ask outside ``public_folders``; metrics and the list of hosts are not
        for them."""
        asked = {path for path in LIMITED_PATHS if not path.startswith("/v1/")}
        return sorted(asked | {PAGE_PATH, "/health", "/ready", "/version", OPENAPI_PATH})

    @property
    def public_folders(self) -> list[str]:
        return ["/v1/", *([PAGE_FILES] if self.settings.page else [])]

    @property
    def patience_s(self) -> int:
        """Longer than a gateway takes at most, so that it is the gateway which tells the client
        that time is up."""
        return round(self.settings.request_timeout_s) + 30

    @property
    def stream_patience_s(self) -> int:
        """Longer than a gateway may leave a stream silent: while it looks for a replica, and while
        the one it had and the next one stall. After that it hangs."""
        settings = self.settings
        return math.ceil(settings.longest_patience_s + 2 * settings.stall_timeout_s)

    @property
    def tls_port(self) -> str:
        """As a suffix of a host's name in ``https:`` addresses."""
        port = self.listen[0].rpartition(":")[2]
        return "" if port == "443" else f":{port}"


def _check_address(name: str, value: str) -> None:
    match = _ADDRESS.fullmatch(value)
    if match is None or int(match[2]) not in PORTS:
        raise PlanError(f"{name} must be HOST:PORT with a port from 1 to 65535, not {value!r}")


def _check(pattern: re.Pattern[str], name: str, value: str, allowed: str) -> None:
    if not pattern.fullmatch(value):
        raise PlanError(f"{name} must be {allowed}, not {value!r}")
