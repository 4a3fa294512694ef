"""What a Serve config file says about this project's applications."""

from __future__ import annotations

import copy
import logging
from typing import Any

import ray

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
        _warn_without_keys(config, _settings(application))
    return checked


def applications(config: dict[str, Any]) -> list[tuple[str, AppSettings]]:
    """Where a client on this machine reaches each of this project's applications."""
    found = []
    for application in _built_by(config, GATEWAYS):
        settings = _settings(application)
        # None: an application that other applications call, and no client.
        prefix = application.get("route_prefix", "/")
        if settings.gateway.port:
            # There the gateway knows no prefix.
            found.append((_own_url(settings), settings))
        elif prefix is not None:
            found.append((_proxy_url(config) + prefix.rstrip("/"), settings))
    return found


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


def _warn_without_keys(config: dict[str, Any], settings: AppSettings) -> None:
    key, host = "http_options.host", _proxy_host(config)
    if settings.gateway.port:
        key, host = "gateway.host", _own_host(settings)
    local = host == "localhost" or is_loopback(host)
    if not KeySource.of(settings.gateway) and not local:
        logger.warning(
            "%s is %s, but without an API key only clients on the same machine are served: "
            "set gateway.api_keys_file, or %s: 127.0.0.1.",
            key,
            host,
            key,
        )


def _own_url(settings: AppSettings) -> str:
    return f"http://{_local(_own_host(settings))}:{settings.gateway.port}"


def _own_host(settings: AppSettings) -> str:
    node: str = ray.util.get_node_ip_address()  # type: ignore[no-untyped-call]
    return settings.gateway.host or node


def _proxy_url(config: dict[str, Any]) -> str:
    options = config.get("http_options") or {}
    scheme = "https" if options.get("ssl_certfile") else "http"
    return f"{scheme}://{_local(_proxy_host(config))}:{options.get('port', 8000)}"


def _proxy_host(config: dict[str, Any]) -> str:
    host: str = (config.get("http_options") or {}).get("host", "0.0.0.0")
    return host


def _local(host: str) -> str:
    """As a client on this machine writes it."""
    host = ANY_HOST.get(host, host)
    return f"[{host}]" if ":" in host else host
