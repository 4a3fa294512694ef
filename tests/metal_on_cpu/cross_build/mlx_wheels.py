"""MLX as a Mac gets it: the macOS wheels of the MLX release that is installed here."""

from __future__ import annotations

import subprocess
import sys
import zipfile
from importlib.metadata import version
from pathlib import Path

from .tools import CACHE, missing, one_at_a_time

PLATFORM = "macosx_14_0_arm64"


def mlx_for_macos() -> Path:
    """The folder of the unpacked package ``mlx``, downloaded the first time.

    It holds ``lib/libmlx.dylib``, ``lib/mlx.metallib`` (every kernel, compiled by Apple),
    ``include`` (kernel sources too) and ``share/cmake``.
    """
    release = version("mlx")
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    folder = CACHE / f"mlx-{release}-{PLATFORM}-{python}"
    with one_at_a_time(folder):
        if not (folder / "complete").exists():
            _download(folder, release, python)
    return folder / "mlx"


def _download(folder: Path, release: str, python: str) -> None:
    wheels = folder / "wheels"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", f"--platform={PLATFORM}", f"--python-version={python}"]
    command += [f"--dest={wheels}", f"mlx=={release}", f"mlx-metal=={release}"]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    if finished.returncode != 0:
        missing(f"MLX's macOS wheels cannot be downloaded: {finished.stderr.strip()}")
    for wheel in wheels.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder)
        wheel.unlink()
    (folder / "complete").touch()
