"""`serve run` for people: what ``pomona serve`` does once it has a config.

Mistakes in the config and models that can't be loaded are told before anything starts. The
terminal has what this project says, and at last where to point a client; if Serve gives up, it has
the cause, and the launcher ends. If Ray dies, it is started again.
"""

from __future__ import annotations

import json
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
from typing import Any
from urllib.parse import urlsplit

import yaml
from ray._private.services import canonicalize_bootstrap_address

from deployments.backend import EngineConfig, create_backend
from deployments.launch.live_terminal import LiveTerminal
from deployments.launch.output import ServerOutput
from deployments.launch.serve_config import applications, check, engine_configs, names
from deployments.launch.server import Server
from deployments.launch.serves_proxy import check_serves_proxy
from deployments.launch.start import Start
from deployments.launch.supervisor import Supervisor
from deployments.settings import AppSettings

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
        found = applications(config)
        if not _ports_are_free([where for where, _ in found]):
            return 1
        _check_engines(engine_configs(config))
    except (OSError, ValueError) as error:
        logger.error("%s%s", f"{source}: " if source else "", error)
        return 2
    with tempfile.TemporaryDirectory(prefix="pomona-") as folder:
        path = Path(folder, "config.yaml")
        path.write_text(yaml.safe_dump(config))
        command = [sys.executable, "-m", "ray.serve.scripts", "run", str(path)]
        return Supervisor(
            lambda: Server(command, terminal, verbose=verbose),
            lambda server: _follow(server, found, config),
        ).run()


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
    """Whether `serve run` would serve in a cluster of Ray's that runs already."""
    # Asked as `serve run` asks it.
    return canonicalize_bootstrap_address(None) is not None  # type: ignore[arg-type]


def _check_engines(engines: Sequence[EngineConfig]) -> None:
    """Raises ``ValueError`` for what this machine's engines can't serve. Engines of a cluster that
    runs already may be on hosts with other models."""
    if joins_cluster():
        return
    # In a process of its own, since a backend's libraries would stay in this one's memory.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        for engine in engines:
            logger.info("Checking %s.", engine.model)
            pool.submit(_check_engine, engine).result()


def _check_engine(engine: EngineConfig) -> None:
    create_backend(engine.backend).check(engine)


def _follow(
    server: Server, found: list[tuple[str, AppSettings]], config: dict[str, Any]
) -> float | None:
    """Until it is up no more. Returns for how many seconds it served, if it did."""
    start = Start(server, names(config))
    ready = [(where, settings) for where, settings in found if start.wait_until_ready(where)]
    since = time.monotonic()
    if ready:
        _tell_where_to_look(server.output)
    for where, settings in ready:
        announce(where, settings, engine_configs(config))
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


def announce(url: str, settings: AppSettings, engines: Sequence[EngineConfig]) -> None:
    with_keys = settings.gateway.api_keys or settings.gateway.api_keys_file
    key = "one of your keys" if with_keys else "anything"
    logger.info("Ready. Point an OpenAI client at base_url=%s/v1 with api_key=%s.", url, key)
    if settings.gateway.page:
        logger.info("A page to chat and to watch: %s/", url)
    if engines:
        logger.info(
            "Or ask from another terminal:\n%s", curl(url, engines[0].name, bool(with_keys))
        )


def curl(url: str, model: str, with_keys: bool) -> str:
    """The command that has ``model`` answer."""
    body = {"model": model, "messages": [{"role": "user", "content": "What is Pomona?"}]}
    key = "-H 'Authorization: Bearer YOUR-KEY' " if with_keys else ""
    return (
        f"  curl {url}/v1/chat/completions {key}-H 'Content-Type: application/json' "
        f"-d {shlex.quote(json.dumps(body, ensure_ascii=False))}"
    )
