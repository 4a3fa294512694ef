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
import urllib.request
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from deployments.api_keys import load_api_keys
from deployments.environment import variables
from deployments.settings import AppSettings, SettingsError, parse_settings

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
        applications = check(config)
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
    if wait_until_ready(url, server):
        announce(url, applications)
    return server.wait()


def check(config: Any) -> list[AppSettings]:
    """The settings of this project's applications in a Serve config. Raises ``SettingsError``."""
    if not isinstance(config, dict) or not isinstance(config.get("applications"), list):
        raise SettingsError("not a Serve config: the top level needs a list `applications`")
    checked = []
    for application in config["applications"]:
        if application.get("import_path") == IMPORT_PATH:
            settings = parse_settings(application.get("args") or {})
            load_api_keys(settings.gateway)
            checked.append(settings)
    return checked


def base_url(config: dict[str, Any]) -> str:
    """Where a client on this machine reaches Serve's proxy."""
    options = config.get("http_options") or {}
    host = options.get("host", "0.0.0.0")
    local = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(host, host)
    scheme = "https" if options.get("ssl_certfile") else "http"
    return f"{scheme}://{local}:{options.get('port', 8000)}"


def wait_until_ready(url: str, server: subprocess.Popen[bytes]) -> bool:
    """False if the server ended first."""
    started = time.monotonic()
    told = False
    while server.poll() is None:
        try:
            with urllib.request.urlopen(f"{url}/ready", timeout=5) as response:
                if json.load(response).get("status") == "ready":
                    return True
        except (OSError, ValueError):
            # Not listening yet, or somebody else's server that is not ready in our sense.
            pass
        if not told and time.monotonic() - started > SLOW_START_S:
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


def announce(url: str, applications: list[AppSettings]) -> None:
    gateways = [settings.gateway for settings in applications]
    with_keys = any(gateway.api_keys or gateway.api_keys_file for gateway in gateways)
    key = "one of your keys" if with_keys else "anything"
    logger.info("Ready. Point an OpenAI client at base_url=%s/v1 with api_key=%s.", url, key)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
