"""Versions of what a cluster's hosts have to have alike."""

from __future__ import annotations

import platform
from functools import cache
from importlib.metadata import version


@cache
def versions() -> dict[str, str]:
    """Of this process: ``pomona``, ``python``, ``ray`` and ``mlx``."""
    return {
        "pomona": version("pomona-serve"),
        "python": platform.python_version(),
        "ray": version("ray"),
        "mlx": version("mlx"),
    }
