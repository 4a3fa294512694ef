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
from urllib.parse import urlsplit

import yaml

from deployments.environment import variables
from deployments.launch.serve_config import applications, check
from deployments.settings import AppSettings, SettingsError

logger = logging.getLogger("pomona")

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
    for where, _ in found:
        if answers(where):
            logger.warning(
                "Something listens at %s already. Unless that is this cluster, set another "
                "http_options.port or gateway.port in %s.",
                where,
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
