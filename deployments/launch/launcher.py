"""`serve run` for people: ``python -m deployments.launch configs/app.yaml``.

Mistakes in the config and models that can't be loaded are told before anything starts. The
terminal has what this project says, and at last where to point a client; if Serve gives up, it has
the cause, and the launcher ends.
"""

from __future__ import annotations

import argparse
import json
import logging
import multiprocessing
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from urllib.parse import urlsplit

import yaml
from ray._private.services import canonicalize_bootstrap_address

from deployments.backend import EngineConfig, create_backend
from deployments.launch.output import ServerOutput
from deployments.launch.serve_config import applications, check, engine_configs, names, with_model
from deployments.launch.serve_status import ServeStatus, cause, failures, setbacks
from deployments.settings import AppSettings

logger = logging.getLogger("pomona")

POLL_INTERVAL_S = 0.5
SLOW_START_S = 60


class DeployError(Exception):
    """Serve has given up an application; the message says why."""


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
        return _serve(path, found, names(config), verbose=options.verbose)


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


def _serve(
    path: Path, found: list[tuple[str, AppSettings]], application_names: list[str], *, verbose: bool
) -> int:
    # A script's `&` has its jobs ignore SIGINT, and a child would inherit that: not so a handler.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    server = subprocess.Popen(
        [sys.executable, "-m", "ray.serve.scripts", "run", str(path)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        errors="replace",
        # Ctrl-C goes to the whole foreground group, and Serve cuts its shutdown short at a second
        # signal: it gets its own group, and every signal once.
        start_new_session=True,
    )
    stopped = False

    def stop(*_: object) -> None:
        nonlocal stopped
        stopped = True
        server.send_signal(signal.SIGINT)

    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, stop)
    assert server.stdout is not None
    output = ServerOutput(server.stdout, sys.stderr, verbose=verbose)
    output.start()
    try:
        start = Start(server, output, application_names)
        ready = [(where, settings) for where, settings in found if start.wait_until_ready(where)]
    except DeployError as error:
        logger.error("%s", error)
        logger.info("Stopping.")
        server.send_signal(signal.SIGINT)
        server.wait()
        return 1
    if ready:
        _tell_where_to_look(output)
    for where, settings in ready:
        announce(where, settings)
    code = server.wait()
    if not stopped:
        logger.error("The server has ended by itself: %s", cause(output.last_words()))
        return code or 1
    return code


class Start:
    """Follows the start of a server, and tells once each what keeps it."""

    def __init__(
        self, server: subprocess.Popen[str], output: ServerOutput, application_names: list[str]
    ) -> None:
        self._server = server
        self._output = output
        self._names = application_names
        self.status: ServeStatus | None = None
        self._told: set[str] = set()
        self._started = time.monotonic()

    def wait_until_ready(self, url: str) -> bool:
        """Whether the application at ``url`` has a replica that answers; False if the server ended
        first. Raises ``DeployError``."""
        while self._server.poll() is None:
            try:
                with urllib.request.urlopen(f"{url}/ready", timeout=5) as response:
                    if json.load(response).get("status") == "ready":
                        return True
            except urllib.error.HTTPError as error:
                with error:
                    if error.code in (401, 403):
                        refusal = f"{error.code}: {error.read().decode(errors='replace')}"
                        self._tell(f"{url}/ready refuses this launcher with {refusal}")
            except (OSError, ValueError):
                # Not listening yet, or somebody else's server that is not ready in our sense.
                pass
            self._look_at_status()
            time.sleep(POLL_INTERVAL_S)
        return False

    def _look_at_status(self) -> None:
        if self.status is None and self._output.dashboard_url is not None:
            self.status = ServeStatus(self._output.dashboard_url)
        details = self.status.details() if self.status is not None else {}
        if failed := failures(details, self._names):
            raise DeployError("\n".join(failed))
        for text in setbacks(details, self._names):
            self._tell(f"Trying again, since it did not start: {text}")
        if time.monotonic() - self._started > SLOW_START_S:
            self._tell("Still starting.")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            logger.warning("%s", text)


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
