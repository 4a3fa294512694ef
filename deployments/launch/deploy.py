"""Deploys a config to the Serve of this process' Ray, and follows it until it answers."""

from __future__ import annotations

import json
import logging
import shlex
import time
import urllib.error
from collections.abc import Sequence
from typing import Any

from ray import serve
from ray.serve.context import _get_global_client
from ray.serve.schema import ServeDeploySchema

from deployments.app import build_app, build_engines
from deployments.backend import EngineConfig
from deployments.launch.direct import open_directly
from deployments.launch.events import LAUNCHER
from deployments.launch.phases import DeployError, Phases
from deployments.launch.serve_config import ENGINES, GATEWAYS, applications, engine_configs, names
from deployments.launch.serve_status import failures, setbacks
from deployments.settings import AppSettings

logger = logging.getLogger(LAUNCHER)

POLL_INTERVAL_S = 0.1
STATUS_INTERVAL_S = 0.5
BUILDERS = {GATEWAYS: build_app, ENGINES: build_engines}
BUILT_HERE = {"name", "import_path", "route_prefix", "args"}
"""Keys of an application that needs no process of its own to build it."""
DEPLOYED_HERE = {"proxy_location", "http_options", "grpc_options", "applications"}


def deploy(config: dict[str, Any], phases: Phases, *, is_own: bool) -> None:
    """Raises ``DeployError`` for an application that can't be built."""
    schema = ServeDeploySchema.model_validate(config)
    serve.start(
        proxy_location=schema.proxy_location,
        http_options=schema.http_options.model_dump(),
        grpc_options=schema.grpc_options.model_dump(),
        controller_options=schema.controller_options,
    )
    phases.begin("deploying")
    if not is_own or not _is_built_here(config):
        client = _get_global_client()
        assert client is not None
        client.deploy_apps(schema)
        return
    # Serve would have another process import all that this one, and each replica, imports.
    try:
        targets = [
            serve.RunTarget(
                BUILDERS[one.import_path](one.args or {}),
                name=one.name,
                route_prefix=one.route_prefix,
            )
            for one in schema.applications
        ]
    except ValueError as error:
        raise DeployError(str(error)) from error
    serve.run_many(
        targets, wait_for_ingress_deployment_creation=False, wait_for_applications_running=False
    )


def _is_built_here(config: dict[str, Any]) -> bool:
    return config.keys() <= DEPLOYED_HERE and all(
        one.keys() <= BUILT_HERE and one["import_path"] in BUILDERS
        for one in config["applications"]
    )


def follow(config: dict[str, Any], phases: Phases) -> None:
    """Until each application that clients reach has a replica that answers. Raises
    ``DeployError``."""
    start = Start(names(config))
    found = applications(config)
    for url, _ in found:
        start.wait_until_ready(url)
    if found:
        logger.info("", extra={"event": "ready"})
        took_s = phases.finish()
        for url, settings in found:
            announce(url, settings, engine_configs(config), took_s)


class Start:
    """Follows the start of applications, and reports each setback once."""

    def __init__(self, application_names: list[str]) -> None:
        self._names = application_names
        self._told: set[str] = set()
        self._looked_at = 0.0

    def wait_until_ready(self, url: str) -> None:
        while not self._is_ready(url):
            if time.monotonic() - self._looked_at >= STATUS_INTERVAL_S:
                self._looked_at = time.monotonic()
                self._look_at_status()
            time.sleep(POLL_INTERVAL_S)

    def _is_ready(self, url: str) -> bool:
        try:
            with open_directly(f"{url}/ready", timeout=5) as response:
                return bool(json.load(response).get("status") == "ready")
        except urllib.error.HTTPError as error:
            with error:
                if error.code in (401, 403):
                    refusal = f"{error.code}: {error.read().decode(errors='replace')}"
                    self._tell(f"{url}/ready refuses this launcher with {refusal}")
        except (OSError, ValueError):
            # Not listening yet, or another program's server.
            pass
        return False

    def _look_at_status(self) -> None:
        found = serve.status().applications
        if failed := failures(found, self._names):
            raise DeployError("\n".join(failed))
        for text in setbacks(found, self._names):
            self._tell(f"Trying again, since it did not start: {text}")

    def _tell(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            logger.warning("%s", text)


def announce(
    url: str, settings: AppSettings, engines: Sequence[EngineConfig], took_s: float
) -> None:
    with_keys = settings.gateway.api_keys or settings.gateway.api_keys_file
    key = "one of your keys" if with_keys else "anything"
    logger.info(
        "Ready. Point an OpenAI client at base_url=%s/v1 with api_key=%s. The start took %.1f s.",
        url,
        key,
        took_s,
    )
    if settings.gateway.page:
        logger.info("A page to chat and to watch: %s/", url)
        logger.info("Lines to copy for coding agents: %s/#/connect", url)
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
