"""What a Serve config file says about this project's applications."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping
from typing import Any

from deployments.backend import EngineConfig
from deployments.gateway.access.api_keys import is_loopback
from deployments.gateway.access.watched_keys import KeySource
from deployments.settings import AppSettings, SettingsError, parse_settings

logger = logging.getLogger("pomona")

GATEWAYS = "deployments.app:build_app"
"""Import path of an application that clients reach."""
ENGINES = "deployments.app:build_engines"
SERVE_DEFAULT_APP_NAME = "default"
ANY_HOST = {"0.0.0.0": "127.0.0.1", "::": "::1"}


def check(config: Any) -> list[AppSettings]:
    """The settings of this project's applications. Raises ``SettingsError``."""
    if not isinstance(config, dict) or not isinstance(config.get("applications"), list):
        raise SettingsError("not a Serve config: the top level needs a list `applications`")
    checked = [_settings(one) for one in _built_by(config, GATEWAYS, ENGINES)]
    for application in _built_by(config, GATEWAYS):
        _warn_without_keys(_settings(application))
    return checked


def applications(config: dict[str, Any]) -> list[tuple[str, AppSettings]]:
    """Where a client on this machine reaches each of this project's applications, without those
    whose gateways take a free port."""
    found = [_settings(one) for one in _built_by(config, GATEWAYS)]
    return [
        (f"http://{local(own_host(settings))}:{settings.gateway.port}", settings)
        for settings in found
        if settings.gateway.port
    ]


def with_model(config: dict[str, Any], model: str) -> dict[str, Any]:
    """``config`` with ``model`` for every engine, without what it says of another model."""
    changed = copy.deepcopy(config)
    for application in _with_engines(changed):
        args = application["args"] = application.get("args") or {}
        engine = args["engine"] = args.get("engine") or {}
        for name in ("revision", "served_model_name", "aliases", "generation_defaults"):
            engine.pop(name, None)
        engine["model"] = model
    return changed


def with_address(config: dict[str, Any], host: str | None, port: int | None) -> dict[str, Any]:
    """``config`` with clients served at ``host`` and ``port``. None: as it says."""
    changed = copy.deepcopy(config)
    given = {"host": host, "port": port}
    chosen = {name: value for name, value in given.items() if value is not None}
    for application in _built_by(changed, GATEWAYS):
        args = application.get("args") or {}
        application["args"] = args | {"gateway": (args.get("gateway") or {}) | chosen}
    return changed


def with_settings(config: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """``config`` with a value for each key such as ``engine.max_num_seqs``, in every application
    that the key's section belongs to. Raises ``SettingsError`` if there is none."""
    changed = copy.deepcopy(config)
    for key, value in values.items():
        *path, last = key.split(".")
        places = [one for one in _built_by(changed, GATEWAYS, ENGINES) if _has(one, path[0])]
        if not places:
            raise SettingsError(f"{key}: no application of this config has `{path[0]}`")
        for application in places:
            section = application
            for name in ("args", *path):
                section[name] = dict(section.get(name) or {})
                section = section[name]
            section[last] = value
    return changed


def _has(application: dict[str, Any], section: str) -> bool:
    """Whether ``section`` may stand in what ``application`` is built from."""
    if application["import_path"] == ENGINES:
        return section not in ("gateway", "responses", "routing")
    engines = ((application.get("args") or {}).get("gateway") or {}).get("engines")
    return engines is None or section not in ("engine", "autoscaling")


def engine_configs(config: dict[str, Any]) -> list[EngineConfig]:
    """What the engines of this project's applications run."""
    return [_settings(one).engine for one in _with_engines(config)]


def names(config: dict[str, Any]) -> list[str]:
    """Of this project's applications, as Serve knows them."""
    return [one.get("name", SERVE_DEFAULT_APP_NAME) for one in _built_by(config, GATEWAYS, ENGINES)]


def _with_engines(config: dict[str, Any]) -> list[dict[str, Any]]:
    return [
        one
        for one in _built_by(config, GATEWAYS, ENGINES)
        if one["import_path"] == ENGINES or _settings(one).gateway.engines is None
    ]


def _built_by(config: dict[str, Any], *import_paths: str) -> list[dict[str, Any]]:
    return [one for one in config["applications"] if one.get("import_path") in import_paths]


def _settings(application: dict[str, Any]) -> AppSettings:
    return parse_settings(application.get("args") or {})


def _warn_without_keys(settings: AppSettings) -> None:
    host = own_host(settings)
    is_local = host == "localhost" or is_loopback(host)
    if not KeySource.of(settings.gateway) and not is_local:
        logger.warning(
            "gateway.host is %s, but without an API key only clients on the same machine are "
            "served: set gateway.api_keys_file, or gateway.host: 127.0.0.1.",
            host,
        )


def own_host(settings: AppSettings) -> str:
    """Where its gateway on this machine listens."""
    if settings.gateway.host is not None:
        return settings.gateway.host
    # It takes a second to import.
    from ray.util import get_node_ip_address

    node: str = get_node_ip_address()  # type: ignore[no-untyped-call]
    return node


def local(host: str) -> str:
    """As a client on this machine writes it."""
    host = ANY_HOST.get(host, host)
    return f"[{host}]" if ":" in host else host
