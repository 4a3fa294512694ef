"""`serve run` for people: ``python -m deployments.launch configs/app.yaml``.

Mistakes in the config and models that can't be loaded are told before anything starts. The
terminal has what this project says, and at last where to point a client; if Serve gives up, it has
the cause, and the launcher ends. If Ray dies, it is started again.
"""

from __future__ import annotations

import argparse
import logging
import multiprocessing
import os
import shlex
import socket
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from ray._private.services import canonicalize_bootstrap_address

from deployments.backend import EngineConfig, create_backend
from deployments.launch.output import ServerOutput
from deployments.launch.serve_config import applications, check, engine_configs, names, with_model
from deployments.launch.server import Server
from deployments.launch.start import Start
from deployments.launch.supervisor import Supervisor
from deployments.settings import AppSettings

logger = logging.getLogger("pomona")


def main(arguments: list[str]) -> int:
    logging.basicConfig(level=logging.INFO, format="%(name)s: %(message)s")
    options = _options(arguments)
    path: Path = options.config
    try:
        config = yaml.safe_load(path.read_text())
        check(config)
        if options.model:
            config = with_model(config, options.model)
        found = applications(config)
        _check_engines(engine_configs(config))
    except (OSError, yaml.YAMLError, ValueError) as error:
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
    with tempfile.TemporaryDirectory(prefix="pomona-") as folder:
        if options.model:
            path = Path(folder, "config.yaml")
            path.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "ray.serve.scripts", "run", str(path)]
        return Supervisor(
            lambda: Server(command, verbose=options.verbose),
            lambda server: _follow(server, found, names(config)),
        ).run()


def _options(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m deployments.launch", description=__doc__)
    parser.add_argument("config", type=Path, help="a Serve config file")
    parser.add_argument("--model", help="what the engines serve instead of the config's model")
    parser.add_argument("--verbose", action="store_true", help="show all that Ray has to say, too")
    return parser.parse_args(arguments)


def _check_engines(engines: Sequence[EngineConfig]) -> None:
    """Raises ``ValueError`` for what this machine's engines can't serve. Engines of a cluster that
    runs already may be on hosts with other models."""
    # Asked as `serve run` asks it.
    if canonicalize_bootstrap_address(None) is not None:  # type: ignore[arg-type]
        return
    # In a process of its own, since a backend's libraries would stay in this one's memory.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for engine in engines:
            logger.info("Checking %s.", engine.model)
            pool.submit(_check_engine, engine).result()


def _check_engine(engine: EngineConfig) -> None:
    create_backend(engine.backend).check(engine)


def _follow(
    server: Server, found: list[tuple[str, AppSettings]], application_names: list[str]
) -> float | None:
    """Until it is up no more. Returns for how many seconds it served, if it did."""
    start = Start(server, application_names)
    ready = [(where, settings) for where, settings in found if start.wait_until_ready(where)]
    since = time.monotonic()
    if ready:
        _tell_where_to_look(server.output)
    for where, settings in ready:
        announce(where, settings)
    server.wait()
    return time.monotonic() - since if ready else None


def answers(url: str) -> bool:
    parts = urlsplit(url)
    try:
        socket.create_connection((parts.hostname, parts.port), timeout=1).close()
    except OSError:
        return False
    return True


def _tell_where_to_look(output: ServerOutput) -> None:
    """The line that asks Serve from another terminal, whose environment lacks what Ray needs."""
    if output.dashboard_url is None:
        return
    serve = Path(sys.executable).with_name("serve")
    mode = os.environ.get("RAY_AUTH_MODE", "")
    command = f"{shlex.quote(str(serve))} status --address {output.dashboard_url}"
    logger.info("State: RAY_AUTH_MODE=%s %s", shlex.quote(mode), command)


def announce(url: str, settings: AppSettings) -> None:
    with_keys = settings.gateway.api_keys or settings.gateway.api_keys_file
    key = "one of your keys" if with_keys else "anything"
    logger.info("Ready. Point an OpenAI client at base_url=%s/v1 with api_key=%s.", url, key)
