"""The Serve config that the head deploys."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deployments.settings import AppSettings, SettingsError, parse_settings
from ops.cluster.host_list import HostListError

BUILDERS = "deployments.app:"
# What a gateway takes besides its notice and its streams.
GATEWAY_MARGIN_S = 15


@dataclass(frozen=True)
class ServeConfig:
    """A file's text, and the settings of the applications in it."""

    text: str
    settings: Sequence[AppSettings]

    def drain_timeout_s(self, has_gateway: bool) -> int:
        """How long a host goes on until its streams have ended."""
        longest = max(one.replica.drain_timeout_s for one in self.settings)
        if has_gateway:
            longest += max(one.gateway.drain_notice_s for one in self.settings) + GATEWAY_MARGIN_S
        return math.ceil(longest)

    @property
    def models(self) -> list[str]:
        """As clients call them."""
        return sorted({one.engine.name for one in self.settings if one.gateway.engines is None})

    @property
    def api_keys_files(self) -> set[Path]:
        """Where gateways look for keys."""
        files = (one.gateway.api_keys_file for one in self.settings)
        return {file for file in files if file is not None}


def read_serve_config(path: Path) -> ServeConfig:
    """Raises ``HostListError`` with every mistake in the file ``path``."""
    try:
        text = path.read_text(encoding="utf-8")
        settings = _settings(yaml.safe_load(text))
    except (OSError, UnicodeDecodeError, yaml.YAMLError, SettingsError) as error:
        raise HostListError(f"config: {path}: {error}") from None
    return ServeConfig(text, settings)


def _settings(config: Any) -> list[AppSettings]:
    applications = config.get("applications") if isinstance(config, dict) else None
    ours = [
        parse_settings(one.get("args") or {})
        for one in applications or ()
        if str(one.get("import_path")).startswith(BUILDERS)
    ]
    if not ours:
        raise SettingsError(f"no application with the import_path {BUILDERS}...")
    return ours
