"""What a Serve config file says of this project's applications, read without Ray."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deployments.backend import EngineConfig
from deployments.settings import AppSettings, parse_settings

GATEWAYS, ENGINES = "deployments.app:build_app", "deployments.app:build_engines"


@dataclass(frozen=True)
class Config:
    """The first gateway's settings, and what the first engine runs."""

    settings: AppSettings
    engine: EngineConfig


def read_config(path: Path, model: str | None = None) -> Config:
    """``model``: instead of the file's. Raises ``ValueError`` naming the file and what is wrong."""
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
        return _config(content, model)
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from None


def _config(content: Any, model: str | None) -> Config:
    if not isinstance(content, dict) or not isinstance(content.get("applications"), list):
        raise ValueError("not a Serve config: the top level needs a list `applications`")
    found = {
        one["import_path"]: parse_settings(one.get("args") or {})
        for one in reversed(content["applications"])
        if isinstance(one, dict) and one.get("import_path") in (GATEWAYS, ENGINES)
    }
    if GATEWAYS not in found:
        raise ValueError(f"no application of it has the import_path {GATEWAYS}")
    engine = found.get(ENGINES, found[GATEWAYS]).engine
    if model is not None:
        engine = engine.model_copy(update={"model": model, "revision": None})
    return Config(found[GATEWAYS], engine)
