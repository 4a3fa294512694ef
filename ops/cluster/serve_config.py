"""The Serve config that the head deploys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from deployments.settings import AppSettings, SettingsError, parse_settings
from ops.cluster.host_list import HostListError

BUILDERS = "deployments.app:"
# A gateway first tells load balancers that it stops, and lets go of its streams at the end.
GATEWAY_MARGIN_S = 30


@dataclass(frozen=True)
class ServeConfig:
    """A file's text, and the settings of the applications in it."""

    text: str
    settings: Sequence[AppSettings]

    def drain_timeout_s(self, has_gateway: bool) -> int:
        """How long a host goes on until its streams have ended."""
        longest = max(int(one.replica.drain_timeout_s) for one in self.settings)
        return longest + GATEWAY_MARGIN_S if has_gateway else longest


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
