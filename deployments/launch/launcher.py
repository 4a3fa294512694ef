"""Serves a config from a terminal, as ``pomona serve`` does.

Mistakes in the config, and models that can't be loaded, are reported before anything serves. The
terminal has this project's events, and at last where to point a client; if Serve gives up, it has
the cause, and the launcher ends. If Ray dies, it is started again.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import tempfile
import time
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import yaml

from deployments.launch.live_terminal import LiveTerminal
from deployments.launch.model_check import ModelCheck
from deployments.launch.private_files import ray_folder
from deployments.launch.serve_config import applications, check, engine_configs
from deployments.launch.server import Server
from deployments.launch.serves_proxy import check_serves_proxy
from deployments.launch.supervisor import Supervisor

logger = logging.getLogger("pomona")


def launch(
    config: Any, source: Path | None, terminal: LiveTerminal, *, verbose: bool = False
) -> int:
    """Serves ``config``, the content of a Serve config file, until it is told to stop. ``source``
    is where it comes from, if that is a file of the user's. ``terminal`` has the server's lines,
    and should have this process' log. Returns the exit status: 2 for what is
    wrong with the config, 1 for what failed. ``verbose`` shows all that Ray has to say, too."""
    try:
        check(config)
        check_serves_proxy(config)
        if not _ports_are_free([where for where, _ in applications(config)]):
            return 1
        return _run(config, terminal, verbose=verbose)
    except (OSError, ValueError) as error:
        logger.error("%s%s", f"{source}: " if source else "", error)
        return 2


def _run(config: dict[str, Any], terminal: LiveTerminal, *, verbose: bool) -> int:
    """Raises ``ValueError`` for a model that this machine's engines can't serve."""
    # Sockets have short paths, and so has Ray's folder.
    with tempfile.TemporaryDirectory(prefix="launch-", dir=ray_folder()) as name:
        folder = Path(name)
        path = folder / "config.yaml"
        path.write_text(yaml.safe_dump(config))
        logger.info("Starting %s.", " and ".join(one.model for one in engine_configs(config)))
        # Engines of a cluster that runs already may be on hosts with other models. Its processes
        # know nothing of the socket for events: Ray's output stands in for these.
        joins = joins_cluster()
        verbose = verbose or joins
        models = None if joins else ModelCheck(path)
        # The first start began with this process.
        began = chain([psutil.Process().create_time()], iter(time.time, None))

        def start() -> Server:
            command = [sys.executable, "-P", "-m", "deployments.launch.driver", str(path)]
            command += [str(next(began)), *(["--verbose"] if verbose else [])]
            return Server(command, folder, terminal, verbose=verbose)

        try:
            return Supervisor(start, models.raise_mistake if models else lambda: None).run()
        finally:
            if models:
                models.end()


def _ports_are_free(urls: list[str]) -> bool:
    taken = " and ".join(url for url in urls if answers(url))
    if taken and not joins_cluster():
        logger.error("Something listens at %s already. End it, or choose a --port.", taken)
        return False
    if taken:
        logger.warning(
            "Something listens at %s already. Unless that is this cluster, choose a --port.", taken
        )
    return True


def joins_cluster() -> bool:
    """Whether Ray would join a cluster that runs already: one that it is given, or one that
    `ray start` began in the same folder."""
    if address := os.environ.get("RAY_ADDRESS"):
        return address != "local"
    return (ray_folder() / "ray" / "ray_current_cluster").exists()


def answers(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=1).close()
    except OSError:
        return False
    return True
