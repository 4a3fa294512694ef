"""What MLX and the engine say of this machine, asked in a process of its own: an extension that was
built for another MLX may end whoever imports it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import Any

from deployments.backend import EngineConfig, ModelPlan
from deployments.launch.model_check import end_of_import

PROBE = "deployments.command.doctor.probe"
TIMEOUT_S = 120.0
"""A GPU's kernels are compiled in it."""


@dataclass(frozen=True)
class EngineReading:
    """``error``: why the engine can't be loaded; then nothing else is known."""

    error: str = ""
    devices: tuple[str, ...] = ()
    """Best first."""
    attention: str = ""
    """The path that would serve."""
    wanted: str = ""
    """The one that should."""
    reason: str = ""
    warnings: tuple[str, ...] = ()
    """Of the import."""
    is_absent: bool = False
    """The model is still to be downloaded."""
    problem: str = ""
    """Why no engine can serve the model."""
    plan: ModelPlan | None = None


def read_engine(config: EngineConfig) -> EngineReading:
    """Nothing is downloaded."""
    command = [sys.executable, "-P", "-m", PROBE, config.model_dump_json()]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TIMEOUT_S, env=environment
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return EngineReading(error=f"it does not start: {error}")
    try:
        return parse_reading(json.loads(done.stdout.splitlines()[-1]))
    except (ValueError, TypeError, IndexError):
        last = (done.stderr.strip().splitlines() or [""])[-1]
        return EngineReading(error=f"{end_of_import(done.returncode)}: {last}")


def parse_reading(told: dict[str, Any]) -> EngineReading:
    plan = told.pop("plan")
    for name in ("devices", "warnings"):
        told[name] = tuple(told[name])
    return EngineReading(**told, plan=None if plan is None else ModelPlan(**plan))
