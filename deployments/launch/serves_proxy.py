"""Serve's own proxy, which carries no request of this project's applications."""

from __future__ import annotations

import logging
from typing import Any

from deployments.launch.serve_config import ANY_HOST, ENGINES, GATEWAYS, applications, own_host
from deployments.settings import AppSettings, SettingsError

logger = logging.getLogger("pomona")

REMEDY = "set `proxy_location: Disabled` at the top level"
# As Serve takes a config that doesn't say it.
DEFAULT_LOCATION = "EveryNode"
DEFAULT_HOST, DEFAULT_PORT = "0.0.0.0", 8000


def check_serves_proxy(config: dict[str, Any]) -> None:
    """Tells of a proxy that has nothing to do. Raises ``SettingsError`` if it would take the port
    of a gateway."""
    if config.get("proxy_location", DEFAULT_LOCATION) == "Disabled":
        return
    options = config.get("http_options") or {}
    host, port = options.get("host", DEFAULT_HOST), options.get("port", DEFAULT_PORT)
    found = [settings for _, settings in applications(config)]
    if any(_is_same(host, port, settings) for settings in found):
        raise SettingsError(
            f"Serve's proxy would take port {port} (`http_options.port`), which is gateway.port, "
            f"and carries no requests to gateways: {REMEDY}, or choose another gateway.port"
        )
    if all(one.get("import_path") in (GATEWAYS, ENGINES) for one in config["applications"]):
        logger.warning(
            "Serve's proxy at %s:%s carries no requests here, and costs a process: %s.",
            host,
            port,
            REMEDY,
        )


def _is_same(host: str, port: int, settings: AppSettings) -> bool:
    hosts = {host, own_host(settings)}
    return port == settings.gateway.port and (len(hosts) == 1 or not hosts.isdisjoint(ANY_HOST))
