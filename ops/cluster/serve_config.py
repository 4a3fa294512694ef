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
GATEWAYS = f"{BUILDERS}build_app"
# What a gateway takes besides its notice and its streams.
GATEWAY_MARGIN_S = 15


@dataclass(frozen=True)
class ServeConfig:
    """A file's text, and the settings of the applications in it; ``gateways``: of those that have
    any."""

    text: str
    settings: Sequence[AppSettings]
    gateways: Sequence[AppSettings]

    def drain_timeout_s(self, has_gateway: bool) -> int:
        """How long a host goes on until its streams have ended."""
        longest = max(one.replica.drain_timeout_s for one in self.settings)
        if has_gateway:
            notices = (one.gateway.drain_notice_s for one in self.gateways)
            longest += max(notices, default=0.0) + GATEWAY_MARGIN_S
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
        config = yaml.safe_load(text)
        settings, gateways = _settings(config), _settings(config, GATEWAYS)
        if any(one.gateway.port == 0 for one in gateways):
            raise SettingsError("gateway.port: 0 is any port, which load balancers can't know")
    except (OSError, UnicodeDecodeError, yaml.YAMLError, SettingsError) as error:
        raise HostListError(f"config: {path}: {error}") from None
    return ServeConfig(text, settings, gateways)


def _settings(config: Any, builder: str = BUILDERS) -> list[AppSettings]:
    applications = config.get("applications") if isinstance(config, dict) else None
    ours = [
        parse_settings(one.get("args") or {})
        for one in applications or ()
        if str(one.get("import_path")).startswith(builder)
    ]
    if not ours and builder == BUILDERS:
        raise SettingsError(f"no application with the import_path {BUILDERS}...")
    return ours
