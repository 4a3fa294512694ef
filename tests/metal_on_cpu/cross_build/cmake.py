"""CMake, from the Python environment."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from .tools import missing, one_at_a_time

BIN = Path(sys.executable).parent


class BuildError(RuntimeError):
    """The compiler's or the linker's own words."""


def build(source: Path, folder: Path, target: str, options: Mapping[str, object]) -> None:
    """Configures and builds what has changed. Raises ``BuildError``."""
    for name in ("cmake", "ninja"):
        if not (BIN / name).exists():
            missing(f"{name} is not installed: pip install {name}")
    definitions = [f"-D{name}={value}" for name, value in options.items()]
    definitions += [f"-DCMAKE_MAKE_PROGRAM={BIN / 'ninja'}", "-DCMAKE_EXPORT_COMPILE_COMMANDS=ON"]
    jobs = os.cpu_count() if os.environ.get("CI") else 1
    with one_at_a_time(folder):
        _run("--fresh", "-S", source, "-B", folder, "-G", "Ninja", *definitions)
        _run("--build", folder, "--target", target, f"-j{jobs}")


def _run(*arguments: object) -> None:
    command = [str(BIN / "cmake"), *map(str, arguments)]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        raise BuildError(finished.stdout + finished.stderr)
