"""`serve run` for people: ``python -m deployments.launch configs/app.yaml``.

Mistakes in the config are told before anything starts, Ray gets the environment that it needs,
and a line says where to point a client once a replica answers.
"""

from __future__ import annotations

import json
import logging
import os
import platform
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from deployments.api_keys import is_loopback
from deployments.environment import variables
from deployments.settings import AppSettings, SettingsError, parse_settings
from deployments.watched_keys import KeySource

logger = logging.getLogger("pomona")

IMPORT_PATH = "deployments.app:build_app"
POLL_INTERVAL_S = 0.5
SLOW_START_S = 60


def main(arguments: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    if len(arguments) != 1:
        logger.error("usage: python -m deployments.launch CONFIG.yaml")
        return 2
    path = Path(arguments[0])
    try:
        config = yaml.safe_load(path.read_text())
        check(config)
        found = applications(config)
    except (OSError, yaml.YAMLError, SettingsError) as error:
        logger.error("%s: %s", path, error)
        return 2
    url = base_url(config)
    if answers(url):
        logger.warning(
            "Something listens at %s already. Unless that is this cluster's own proxy, set another "
            "http_options.port in %s.",
            url,
            path,
        )
    command = [sys.executable, "-m", "ray.serve.scripts", "run", str(path)]
    # A script's `&` has its jobs ignore SIGINT, and a child would inherit that: not so a handler.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    server = subprocess.Popen(
        command,
        env=variables(platform.system()) | dict(os.environ),
        # Ctrl-C goes to the whole foreground group, and Serve cuts its shutdown short at a second
        # signal: it gets its own group, and every signal once.
        start_new_session=True,
    )
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: server.send_signal(signal.SIGINT))
    for where, settings in found:
        if wait_until_ready(where, server):
            announce(where, settings)
    return server.wait()


def check(config: Any) -> list[AppSettings]:
    """The settings of this project's applications in a Serve config. Raises ``SettingsError``."""
    if not isinstance(config, dict) or not isinstance(config.get("applications"), list):
        raise SettingsError("not a Serve config: the top level needs a list `applications`")
    checked = [parse_settings(one.get("args") or {}) for one in _ours(config)]
    host = _host(config)
    for settings in checked:
        local = host == "localhost" or is_loopback(host)
        if not KeySource.of(settings.gateway) and not local:
            logger.warning(
                "http_options.host is %s, but without an API key only clients on the same machine "
                "are served: set gateway.api_keys_file, or http_options.host: 127.0.0.1.",
                host,
            )
    return checked


def applications(config: dict[str, Any]) -> list[tuple[str, AppSettings]]:
    """Where a client on this machine reaches each of this project's applications."""
    return [
        (base_url(config) + prefix.rstrip("/"), parse_settings(one.get("args") or {}))
        for one in _ours(config)
        # None: an application that other applications call, and no client.
        if (prefix := one.get("route_prefix", "/")) is not None
    ]


def _ours(config: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in config["applications"] if one.get("import_path") == IMPORT_PATH]


def _host(config: dict[str, Any]) -> str:
    host: str = (config.get("http_options") or {}).get("host", "0.0.0.0")
    return host


def base_url(config: dict[str, Any]) -> str:
    """Where a client on this machine reaches Serve's proxy."""
    options = config.get("http_options") or {}
    host = _host(config)
    local = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    local = f"[{local}]" if ":" in local else local
    scheme = "https" if options.get("ssl_certfile") else "http"
    return f"{scheme}://{local}:{options.get('port', 8000)}"


def wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> bool:
    """Whether the application at ``url`` has a replica that answers; False if the server ended
    first. What keeps it is told once."""
    started = time.monotonic()
    told = False
    while server.poll() is None:
        refusal = None
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5) as response:
                if json.load(response).get("status") == "ready":
                    return True
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (401, 403):
                    refusal = f"{error.code}: {error.read().decode(errors='replace')}"
        except (OSError, ValueError):
            # Not listening yet, or somebody else's server that is not ready in our sense.
            pass
        if not told and refusal:
            logger.warning("%s/ready refuses this launcher with %s", url, refusal)
            told = True
        elif not told and time.monotonic() - started > SLOW_START_S:
            logger.info("Still loading; what it waits for is in the log above.")
            told = True
        time.sleep(POLL_INTERVAL_S)
    return False


def answers(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=1).close()
    except OSError:
        return False
    return True


def announce(url: str, settings: AppSettings) -> None:
    with_keys = settings.gateway.api_keys or settings.gateway.api_keys_file
    key = "one of your keys" if with_keys else "anything"
    logger.info("Ready. Point an OpenAI client at base_url=%s/v1 with api_key=%s.", url, key)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
