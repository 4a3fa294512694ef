"""The files that people start from: Serve configs, Grafana's dashboards, Prometheus' rules."""

from __future__ import annotations

from pathlib import Path

IN_WHEEL = Path(__file__).parents[1] / "shipped"
"""Where ``pyproject.toml`` has a wheel keep them; a checkout has no such folder."""
REPOSITORY = Path(__file__).parents[2]

CONFIGS = (IN_WHEEL if IN_WHEEL.is_dir() else REPOSITORY) / "configs"
